"""Verification rules, one page each."""
