"""Claims, the look of figures, the report page. It knows no experiment by name."""
