"""Rehearses disaster recovery (docs/disaster-recovery.md): a cell is lost under load, and another takes its place."""
