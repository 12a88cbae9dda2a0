# Compiler options of our own code, and what makes the build fast: ccache, mold, one precompiled header.
find_program(SNUG_CCACHE ccache)
if(SNUG_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_NOHASHDIR=1 "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" "${SNUG_CCACHE}")
endif()
find_program(SNUG_MOLD mold)
if(SNUG_MOLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12.1)
  add_link_options(-fuse-ld=mold)
endif()

add_library(snug_options INTERFACE)
target_compile_features(snug_options INTERFACE cxx_std_20)
target_include_directories(snug_options INTERFACE
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")

# Warnings are ours alone: they do not reach those who link snug.
set(SNUG_WARNINGS -Wall -Wextra -Werror -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
    # g++ 12 sees these in inlined LibTorch and libstdc++ code that is right.
    -Wno-error=maybe-uninitialized -Wno-error=array-bounds -Wno-error=stringop-overflow -Wno-restrict
    -Wno-error=free-nonheap-object -Wno-error=dangling-reference)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(REMOVE_ITEM SNUG_WARNINGS -Wno-error=dangling-reference)
endif()
