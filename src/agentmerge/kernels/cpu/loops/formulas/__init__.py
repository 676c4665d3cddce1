"""What each method makes of one vector of elements, and the loop of it: one file per formula."""
