"""`fastcar demo`: a local page that makes videos and plays them beside the map of what was replayed or drafted."""
