"""What scripts/load_test.py consists of: work (what is asked), wire (HTTP and event streams), run (settings and records), report (figures, table, plot), stub (a server without a model)."""
