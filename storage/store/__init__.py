"""The store that holds one index: its protocol, the segmented store, and maintenance."""
