"""Sources of samples: one data set class per kind of file, and the readers that several of them share."""
