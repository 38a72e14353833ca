"""Braid: a discrete-event simulator of LLM-inference clusters.

This file imports nothing, so that the command line answers at once; import from the modules.
"""
