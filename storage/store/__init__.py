"""What holds one index: the store protocol, the segmented store, its contents and their upkeep."""
