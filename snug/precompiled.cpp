// Compiled once for its precompiled header; see snug/CMakeLists.txt.
