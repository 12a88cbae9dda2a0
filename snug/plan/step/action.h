#pragma once

#include <cstddef>
#include <cstdint>

namespace snug::plan {

/// Where the contents of a value are between its making and its last use in the backward pass.
enum class Home : std::uint8_t {
  Device,   ///< where they were made; with a codec from when autograd saves them on
  Host,     ///< they leave the device's memory when autograd saves them, and are fetched when backward asks
  Disk,     ///< the same, to a file
  Nowhere,  ///< they are dropped when the program lets go of them, and made again by replay when backward asks
};

/// How they are written there.
enum class Codec : std::uint8_t {
  None,  ///< as they are
  // With the same bits.
  Zeros,      ///< a bit for each number that says whether it is 0, and those that are not
  Bits,       ///< a bit for each byte that is 0 or 1
  Narrow,     ///< integers in as many bytes as the largest needs
  Exponents,  ///< half a byte for the exponent of each number, as most lie close together
  // Lossy: what backward gets are other numbers, and only that; what is made again is made of what it was made of.
  BFloat16,
  Float8,
  Int8,
  Int4,
};
inline constexpr std::size_t kCodecs = static_cast<std::size_t>(Codec::Int4) + 1;
[[nodiscard]] constexpr bool is_lossy(Codec codec) { return codec >= Codec::BFloat16; }

/// What happens to a value. Closed: whoever decides by it names every case.
struct Action {
  Home home = Home::Device;
  Codec codec = Codec::None;
  friend bool operator==(const Action&, const Action&) = default;
};

inline constexpr Action kKeep{Home::Device};
inline constexpr Action kMove{Home::Host};
inline constexpr Action kMoveToDisk{Home::Disk};
inline constexpr Action kRecompute{Home::Nowhere};
[[nodiscard]] constexpr Action compressed(Codec codec) { return {Home::Device, codec}; }
[[nodiscard]] constexpr bool is_moved(Action action) { return action.home == Home::Host || action.home == Home::Disk; }
[[nodiscard]] constexpr bool is_compressed(Action action) {
  return action.home == Home::Device && action.codec != Codec::None;
}
[[nodiscard]] constexpr bool is_lossy(Action action) { return is_lossy(action.codec); }

/// What a plan has no say in: the program's policy has decided (see Choice), or nothing else is possible.
enum class Must : std::uint8_t { Nothing, Keep, Recompute };

/// What happens to a value of which `must` is known and for which `planned` is preferred: the one rule of the step
/// that runs and the step that is simulated.
[[nodiscard]] constexpr Action decide(Must must, Action planned) {
  switch (must) {
    case Must::Keep:
      return kKeep;
    case Must::Recompute:
      return kRecompute;
    case Must::Nothing:
      break;
  }
  return planned;
}

}  // namespace snug::plan
