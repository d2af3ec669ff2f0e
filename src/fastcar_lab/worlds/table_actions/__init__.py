"""The world of `table-actions`: on `table`'s ground a person steers a ball, which pushes what is in its way."""
