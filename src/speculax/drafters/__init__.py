"""Drafters, one page each."""
