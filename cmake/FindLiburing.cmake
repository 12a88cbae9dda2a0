# liburing, as Liburing::liburing. Debian's package brings no CMake files of its own.
find_path(Liburing_INCLUDE_DIR liburing.h)
find_library(Liburing_LIBRARY uring)
if(Liburing_INCLUDE_DIR)
  file(STRINGS "${Liburing_INCLUDE_DIR}/liburing.h" _liburing_data64 REGEX "io_uring_sqe_set_data64" LIMIT_COUNT 1)
  if(NOT _liburing_data64)  # before 2.2
    set(Liburing_INCLUDE_DIR Liburing_INCLUDE_DIR-NOTFOUND)
  endif()
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Liburing REQUIRED_VARS Liburing_LIBRARY Liburing_INCLUDE_DIR)
if(Liburing_FOUND AND NOT TARGET Liburing::liburing)
  add_library(Liburing::liburing UNKNOWN IMPORTED)
  set_target_properties(Liburing::liburing PROPERTIES IMPORTED_LOCATION "${Liburing_LIBRARY}"
                                                     INTERFACE_INCLUDE_DIRECTORIES "${Liburing_INCLUDE_DIR}")
endif()
mark_as_advanced(Liburing_INCLUDE_DIR Liburing_LIBRARY)
