"""`fastcar demo`: a local page that makes videos and plays them beside a map of replayed MLPs or accepted drafts."""
