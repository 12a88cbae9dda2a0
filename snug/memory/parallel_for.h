#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace snug::memory {

/// Calls work(first, last) for parts of [begin, end), each of `grain` or more but the last, on LibTorch's threads, of
/// which there are as many as at::set_num_threads says; on the calling one alone where there is one part, or from
/// inside of such a call. What `work` throws comes out. (at::parallel_for is compiled into whoever calls it, and
/// without OpenMP's compiler flags runs on the calling thread; with them, on the threads of a second OpenMP where
/// LibTorch brings one of its own.)
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain,
                  c10::function_ref<void(std::int64_t, std::int64_t)> work);

}  // namespace snug::memory
