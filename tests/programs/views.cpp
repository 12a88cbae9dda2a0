// Views, and operators that write in place, to values and through views of them.
#include <array>
#include <vector>

#include "tests/programs/state.h"

namespace snug::programs {
namespace {

at::Tensor view_of(const at::Tensor& x, std::uint8_t variant, std::uint8_t where) {
  if (x.dim() == 0) return variant % 2 == 0 ? x.unsqueeze(0) : x.view({1, 1});
  const std::int64_t d = dimension(x, where), n = x.size(d);
  if (n == 0) return x.unsqueeze(0);
  switch (variant % 14) {
    case 0:
      return x.transpose(0, -1);
    case 1:
      return x.narrow(d, where % n, n - where % n);
    case 2:
      return x.select(d, where % n);
    case 3:
      return x.slice(d, 0, n, 2);
    case 4:
      return x.unsqueeze(d);
    case 5:
      return x.swapaxes(0, d);
    case 6:
      return x.flatten();
    case 7:
      return x.dim() >= 2 ? x.diagonal() : x.unsqueeze(1);
    case 8:
      return x.unfold(d, std::min<std::int64_t>(n, 2), 1);
    case 9:
      return x.squeeze();
    case 10:
      return x.movedim(0, -1);
    case 11:
      return x.as_strided({n}, {x.stride(d)}, x.storage_offset());
    case 12:
      return x.detach();
    default:
      return x.alias();
  }
}

void view(State& s, const Instruction& i) {
  // An expansion of every shape, as the cases above refuse some.
  const at::Tensor x = s.pick(i.first);
  if (i.variant % 16 == 15) {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(x.dim()) + 1, -1);
    sizes[0] = 2;
    return s.push(x.expand(sizes));
  }
  s.push(view_of(x, i.variant, i.second));
}

void copy_in_another_layout(State& s, const Instruction& i) {
  const at::Tensor x = s.pick(i.first);
  switch (i.variant % 5) {
    case 0:
      return s.push(x.contiguous());
    case 1:
      return s.push(x.clone());
    case 2:
      return s.push(x.flip({0}));
    case 3:
      return s.push(x.roll(1));
    default:
      return s.push(at::constant_pad_nd(x, {1, 1}, 0.5));
  }
}

/// A value that may be written: no weight, and each element at an address of its own.
at::Tensor writable(State& s, const Instruction& i) {
  const at::Tensor x = s.pick(i.first);
  const bool weight = x.is_leaf() && x.requires_grad();
  if (!weight && x.is_non_overlapping_and_dense() && i.second % 4 != 0) return x;
  s.push(x.clone());
  return s.live.back();
}

void write(State& s, const Instruction& i) {
  at::Tensor x = writable(s, i);
  const at::Tensor other = s.pick(i.second).to(x.scalar_type()).mean();
  switch (i.variant % 16) {
    case 0:
      x.mul_(0.7);
      return;
    case 1:
      x.add_(other, 0.1);
      return;
    case 2:
      x.relu_();
      return;
    case 3:
      x.sigmoid_();
      return;
    case 4:
      x.copy_(fitted(s.pick(i.second).to(x.scalar_type()), x.sizes()));
      return;
    case 5:
      x.masked_fill_(x.detach() > 0.5, 0.25);
      return;
    case 6:
      x.clamp_(-1, 1);
      return;
    case 7:
      x.zero_();
      return;
    case 8:
      x.fill_(other);
      return;
    case 9:
      x.mul_(other.tanh());
      return;
    case 10:
      x.tanh_();
      return;
    case 11:
      x.div_(other * other + 1);
      return;
    case 12:
      at::_foreach_add_({x}, 0.25);
      return;
    case 13:
      x.addcmul_(other, other, 0.1);
      return;
    case 14:
      x.exp_().clamp_(0, 2);
      return;
    default:
      x.neg_();
      return;
  }
}

void write_through_view(State& s, const Instruction& i) {
  at::Tensor x = writable(s, i);
  if (x.numel() == 0) return;
  at::Tensor part = view_of(x, static_cast<std::uint8_t>(i.variant % 5), i.second);
  switch (i.variant / 5 % 5) {
    case 0:
      part.mul_(0.6);
      return;
    case 1:
      part.add_(s.pick(i.second).to(x.scalar_type()).mean());
      return;
    case 2:
      part.tanh_();
      return;
    case 3:
      part.copy_(fitted(s.pick(i.second).to(x.scalar_type()), part.sizes()));
      return;
    default:
      x.index_put_({at::indexing::Slice(0, 1)}, 0.5);
      return;
  }
}

void copy_to_another_device(State& s, const Instruction& i) {
  const std::vector<c10::Device> devices = testing::test_devices();
  s.push(s.pick(i.first).to(devices[i.variant % devices.size()], /*non_blocking=*/false, /*copy=*/true));
}

constexpr std::array<Kind, 3> kViews{
    {{"view", &view}, {"copy", &copy_in_another_layout}, {"copy to another device", &copy_to_another_device}}};
constexpr std::array<Kind, 2> kWrites{{{"write", &write}, {"write through a view", &write_through_view}}};

}  // namespace

std::span<const Kind> view_kinds() { return kViews; }
std::span<const Kind> in_place_kinds() { return kWrites; }

}  // namespace snug::programs
