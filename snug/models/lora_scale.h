#pragma once

namespace snug::models {

/// What an adapter's product is multiplied with.
enum class LoraScale : unsigned char {
  AlphaOverRank,      ///< Hu et al. 2021
  AlphaOverRootRank,  ///< "rsLoRA", Kalajdzievski 2023
};

}  // namespace snug::models
