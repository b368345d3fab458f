"""Who trains: runs, the views claimed in them, and the heartbeat that shows a live one."""
