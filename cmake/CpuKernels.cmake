# snug_cpu_kernels(TARGET file...): kernels compiled once for each instruction set, as LibTorch compiles its own (see
# ATen/native/DispatchStub.h and torch/_inductor/cpu_vec_isa.py for the macros and flags), as part of TARGET. Which of
# them runs is chosen by snug/ops/cpu_kernels.cpp.
function(snug_cpu_kernels target)
  set(sets DEFAULT)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    list(APPEND sets AVX2 AVX512)
    target_compile_definitions(${target} PRIVATE SNUG_KERNELS_X86)
  endif()
  set(flags_of_AVX2 -mavx2 -mfma -mf16c)
  set(flags_of_AVX512 -mavx512f -mavx512dq -mavx512vl -mavx512bw -mfma -mf16c)
  foreach(set IN LISTS sets)
    set(objects ${target}_kernels_${set})
    add_library(${objects} OBJECT ${ARGN})
    target_link_libraries(${objects} PRIVATE snug_options LibTorch::torch)
    target_compile_definitions(${objects} PRIVATE CPU_CAPABILITY=${set} CPU_CAPABILITY_${set})
    # -O3, always: here the loops are ours, and what is not inlined might be shared with code for other processors
    # (tests/architecture/kernel_symbols.py). No products and sums are fused that are not written so, as in LibTorch's kernels.
    # g++ 12 takes the undefined vectors of its own intrinsics for faults.
    target_compile_options(${objects} PRIVATE ${SNUG_WARNINGS} -Wno-maybe-uninitialized -Wno-uninitialized -O3 -ffp-contract=off
                                              ${flags_of_${set}})
    set_target_properties(${objects} PROPERTIES UNITY_BUILD OFF CXX_VISIBILITY_PRESET hidden
                                                VISIBILITY_INLINES_HIDDEN ON)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
endfunction()
