# What `cmake --install` puts where: the headers, every room's library, the command, and a package for
# find_package(snug). Included last, when all targets exist.
include(CMakePackageConfigHelpers)

get_property(_rooms GLOBAL PROPERTY SNUG_ROOMS)
set(_exported snug_options ${_rooms})
if(TARGET snug)
  list(APPEND _exported snug)
endif()
set_target_properties(snug_options PROPERTIES EXPORT_NAME options)

set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/snug")
install(TARGETS ${_exported} EXPORT snugTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(EXPORT snugTargets NAMESPACE snug:: DESTINATION "${_package_dir}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/snug/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/snug"
  FILES_MATCHING PATTERN "*.h" PATTERN "cli" EXCLUDE)

if(TARGET snug_cli)
  get_target_property(_kind snug_cli TYPE)
  if(_kind STREQUAL "EXECUTABLE")
    # LibTorch stays where it is. Without this, installing leaves an empty entry in the run path: the current folder.
    set_target_properties(snug_cli PROPERTIES INSTALL_RPATH "${LibTorch_DIR_USED}/lib")
    install(TARGETS snug_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  endif()
endif()

# A static library hands its dependencies on, private ones too: the package looks for those that the rooms link.
set(_links "")
foreach(_target IN LISTS _exported)
  get_target_property(_of_target ${_target} INTERFACE_LINK_LIBRARIES)
  list(APPEND _links ${_of_target})
endforeach()
set(SNUG_FIND_DEPENDENCIES "")
foreach(_package IN ITEMS fmt nlohmann_json tomlplusplus CLI11 PCRE2 Utf8proc SentencePiece JPEG PNG Liburing Threads)
  if("${_links}" MATCHES "${_package}::")
    string(APPEND SNUG_FIND_DEPENDENCIES "find_dependency(${_package})\n")
  endif()
endforeach()

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/snugConfig.cmake.in" "${PROJECT_BINARY_DIR}/snugConfig.cmake"
  INSTALL_DESTINATION "${_package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/snugConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/snugConfig.cmake"
  "${PROJECT_BINARY_DIR}/snugConfigVersion.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FindLibTorch.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FindLiburing.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FindPCRE2.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FindSentencePiece.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FindUtf8proc.cmake"
  DESTINATION "${_package_dir}")
