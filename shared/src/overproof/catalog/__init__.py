"""The plug-ins by kind: names, typed parameters, sources. Listing them imports no torch."""
