"""The world of `mini-actions`: an object of `mini`'s world that is pushed, and a small iVideoGPT that learned it."""
