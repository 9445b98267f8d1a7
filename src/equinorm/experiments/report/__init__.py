"""Results as people read them: one HTML page, and the table in the README."""
