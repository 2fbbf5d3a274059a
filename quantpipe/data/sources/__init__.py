"""Where samples come from: one data set class per kind of file, and what several of them read with."""
