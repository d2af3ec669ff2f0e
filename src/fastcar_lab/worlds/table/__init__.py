"""The world of the bundled model `table`: solid objects that stand, move and collide on a ground."""
