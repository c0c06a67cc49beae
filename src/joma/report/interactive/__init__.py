"""What a page shows beside its figures where scripts run: maps over steps, curves by run, sortable tables."""
