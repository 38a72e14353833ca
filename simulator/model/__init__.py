"""Models: shapes, and from them operations with FLOPs and bytes, never time."""
