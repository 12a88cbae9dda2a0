# Finds LibTorch from its folder alone, without TorchConfig.cmake: that file drags in CUDA, protobuf and MKL look-ups
# that a program which only links the libraries does not need.
#
# Looked at, in this order: -DSNUG_LIBTORCH=DIR, the environment's SNUG_LIBTORCH, the torch package of the active
# Python, the torch package of .venv in the source tree. DIR holds include/ and lib/.
#
# Defines LibTorch::torch, LibTorch_VERSION, LibTorch_HAS_CUDA (it was built for CUDA, and the headers of the CUDA runtime,
# which its own include, are here) and LibTorch_DIR_USED.

set(_candidates "")
if(SNUG_LIBTORCH)
  list(APPEND _candidates "${SNUG_LIBTORCH}")
elseif(DEFINED ENV{SNUG_LIBTORCH} AND NOT "$ENV{SNUG_LIBTORCH}" STREQUAL "")
  list(APPEND _candidates "$ENV{SNUG_LIBTORCH}")
else()
  if(SKBUILD)
    # pip hides the packages of the environment that it installs into; its torch is the one that counts.
    execute_process(COMMAND "${Python_EXECUTABLE}" -c "import sysconfig; print(sysconfig.get_path('platlib'))"
                    OUTPUT_VARIABLE _site OUTPUT_STRIP_TRAILING_WHITESPACE)
    list(APPEND _candidates "${_site}/torch")
  endif()
  foreach(_environment IN ITEMS "$ENV{VIRTUAL_ENV}" "$ENV{CONDA_PREFIX}" "${PROJECT_SOURCE_DIR}/.venv")
    set(_python "${_environment}/bin/python")
    if(_environment AND EXISTS "${_python}")  # without one it would be the system's
      execute_process(
        COMMAND "${_python}" -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
        OUTPUT_VARIABLE _dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      if(_dir)
        list(APPEND _candidates "${_dir}")
      endif()
    endif()
  endforeach()
endif()

set(LibTorch_DIR_USED "LibTorch_DIR_USED-NOTFOUND")
foreach(_dir IN LISTS _candidates)
  if(EXISTS "${_dir}/include/ATen/ATen.h" AND EXISTS "${_dir}/lib/libtorch_cpu.so")
    set(LibTorch_DIR_USED "${_dir}")
    break()
  endif()
endforeach()

if(LibTorch_DIR_USED)
  foreach(_header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS "${LibTorch_DIR_USED}/include/${_header}")
      file(STRINGS "${LibTorch_DIR_USED}/include/${_header}" _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" LibTorch_VERSION "${_lines}")
      if(LibTorch_VERSION MATCHES "^[0-9]+\\.[0-9]+\\.[0-9]+$")
        break()
      endif()
    endif()
  endforeach()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_DIR_USED
  VERSION_VAR LibTorch_VERSION
  HANDLE_VERSION_RANGE
  REASON_FAILURE_MESSAGE "set SNUG_LIBTORCH to a folder with include/ and lib/, or run 'make setup'")

if(LibTorch_FOUND AND NOT TARGET LibTorch::torch)
  set(LibTorch_HAS_CUDA OFF)
  set(_includes "${LibTorch_DIR_USED}/include;${LibTorch_DIR_USED}/include/torch/csrc/api/include")
  if(EXISTS "${LibTorch_DIR_USED}/lib/libtorch_cuda.so")
    # Beside torch, where pip puts them (by the major version of CUDA from 13 on), or those of a toolkit.
    cmake_path(GET LibTorch_DIR_USED PARENT_PATH _site)
    find_path(LibTorch_CUDA_INCLUDE_DIR crt/host_defines.h
      HINTS "${_site}/nvidia/cu13/include" "${_site}/nvidia/cuda_runtime/include"
      PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES include)
    find_library(LibTorch_CUDA_RUNTIME NAMES libcudart.so.13 libcudart.so.12 cudart
      HINTS "${_site}/nvidia/cu13/lib" "${_site}/nvidia/cuda_runtime/lib"
      PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES lib64 lib)
    if(LibTorch_CUDA_INCLUDE_DIR AND LibTorch_CUDA_RUNTIME AND EXISTS "${LibTorch_CUDA_INCLUDE_DIR}/cuda_runtime_api.h")
      set(LibTorch_HAS_CUDA ON)
      list(APPEND _includes "${LibTorch_CUDA_INCLUDE_DIR}")
    else()
      message(WARNING "snug: this LibTorch is for CUDA, and the CUDA runtime or its headers are missing, so that this build "
                      "will know no GPU. pip install nvidia-cuda-crt, of the version that nvidia-cuda-runtime has, beside torch")
    endif()
  endif()
  add_library(LibTorch::torch INTERFACE IMPORTED)
  set_target_properties(LibTorch::torch PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_includes}")
  set(_libraries torch torch_cpu c10)
  if(LibTorch_HAS_CUDA)
    list(APPEND _libraries torch_cuda c10_cuda)
  endif()
  set(_paths "")
  foreach(_library IN LISTS _libraries)
    list(APPEND _paths "${LibTorch_DIR_USED}/lib/lib${_library}.so")
  endforeach()
  # libtorch.so itself defines nothing; --no-as-needed keeps the libraries whose kernels register themselves.
  # Not -rpath alone: libtorch_cpu finds its own OpenMP through the same folder. libstdc++ first: libtorch.so of some builds
  # (2.11 for CUDA) exports parts of std::filesystem that crash.
  set_property(TARGET LibTorch::torch PROPERTY INTERFACE_LINK_LIBRARIES
    "-Wl,--no-as-needed" stdc++ ${_paths} "-Wl,--as-needed" "-Wl,-rpath,${LibTorch_DIR_USED}/lib")
  if(LibTorch_HAS_CUDA)
    cmake_path(GET LibTorch_CUDA_RUNTIME PARENT_PATH _runtime)
    set_property(TARGET LibTorch::torch APPEND PROPERTY INTERFACE_LINK_LIBRARIES "${LibTorch_CUDA_RUNTIME}" "-Wl,-rpath,${_runtime}")
  endif()
  find_package(Threads REQUIRED)
  set_property(TARGET LibTorch::torch APPEND PROPERTY INTERFACE_LINK_LIBRARIES Threads::Threads)
endif()
