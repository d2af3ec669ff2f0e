"""The world of `mini`: one object on a background."""
