"""The commands of `braid`, one noun a file. Modules here import click alone at their top; the rest where it is used."""
