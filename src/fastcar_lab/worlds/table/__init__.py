"""The world of the bundled model `table`: solid objects that rest, move and collide on a ground."""
