#include "snug/ops/kernels/table.h"

#include "snug/ops/kernels/declared.h"

namespace snug::ops::kernels::CPU_CAPABILITY {

extern const Table kTable;
constinit const Table kTable{.softmax_loss = softmax_loss,
                             .attention_probabilities = attention_probabilities,
                             .attention_gradients = attention_gradients,
                             .activated = activated,
                             .differentiated = differentiated,
                             .rms_norm = rms_norm,
                             .rms_norm_gradients = rms_norm_gradients,
                             .pack_bits = pack_bits,
                             .times_bits = times_bits,
                             .rotate = rotate,
                             .rotate_back = rotate_back,
                             .decode = decode};

}  // namespace snug::ops::kernels::CPU_CAPABILITY
