"""Records as pages and pictures. Computes nothing: every number shown stands in the record."""
