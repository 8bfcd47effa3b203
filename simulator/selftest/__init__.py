"""Drawn runs that try the engines against each other and against what must hold in every run."""
