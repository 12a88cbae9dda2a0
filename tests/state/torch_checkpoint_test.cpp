#include "snug/state/torch_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "snug/base/damaged_file.h"
#include "snug/base/errors.h"
#include "snug/state/safetensors.h"
#include "snug/state/weights_in.h"

namespace snug::state {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const fs::path kWritten = fs::path(SNUG_TESTS) / "state";

fs::path copy_of(const char* folder) {
  const fs::path to = fs::temp_directory_path() / "snug_torch_checkpoint";
  fs::remove_all(to);
  fs::copy(kWritten / folder, to);
  return to;
}
std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}
std::string said(const fs::path& folder) {
  try {
    for (const auto& [name, tensor] : open_torch_checkpoint(folder)) (void)tensor.read();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

void is(const StoredTensors& found, const char* name, const at::Tensor& expected) {
  const auto tensor = found.find(name);
  ASSERT_NE(tensor, found.end()) << name;
  EXPECT_EQ(tensor->second.dtype, expected.scalar_type()) << name;
  EXPECT_EQ(at::IntArrayRef(tensor->second.shape), expected.sizes()) << name;
  const at::Tensor read = tensor->second.read();
  EXPECT_EQ(read.scalar_type(), expected.scalar_type()) << name;
  EXPECT_TRUE(at::equal(read, expected)) << name << "\n" << read << expected;
}

TEST(TorchCheckpoint, OfTwoProcessesHasTheModelsTensorsWhole) {
  ASSERT_TRUE(is_torch_checkpoint(kWritten / "torch_checkpoint"));
  const StoredTensors found = open_torch_checkpoint(kWritten / "torch_checkpoint");
  EXPECT_EQ(found.size(), 5U) << "of the model alone, by its own names";
  is(found, "weight", torch::arange(30.0).reshape({5, 6}) / 7);
  is(found, "bias", torch::arange(5.0) - 2);
  is(found, "flags", torch::tensor({true, false, true}));
  is(found, "count", torch::tensor(7, torch::kLong));
  is(found, "few_bits", torch::linspace(-1, 1, 6).to(torch::kBFloat16).reshape({2, 3}));
}

TEST(TorchCheckpoint, OfAPlainStateDictHasAllOfIt) {
  const StoredTensors found = open_torch_checkpoint(kWritten / "torch_checkpoint_flat");
  EXPECT_EQ(found.size(), 2U);
  is(found, "layer.weight", torch::arange(12.0).reshape({3, 4}).t());
  is(found, "layer.none", torch::empty({0, 3}));
}

/// As in the folder of a pretrained model, in place of safetensors.
TEST(TorchCheckpoint, IsWhatAFolderOfWeightsHasWhereItIsThere) {
  EXPECT_EQ(open_weights_in(kWritten / "torch_checkpoint").size(), 5U);
  const fs::path folder = copy_of("torch_checkpoint");
  fs::remove(folder / ".metadata");
  fs::copy(kWritten / "reference.safetensors", folder / "model.safetensors");
  EXPECT_EQ(open_weights_in(folder).size(), open_safetensors(kWritten / "reference.safetensors").tensors.size());
}

TEST(TorchCheckpoint, WhatIsNotThereOrElsewhereIsRefused) {
  EXPECT_FALSE(is_torch_checkpoint(kWritten));
  EXPECT_THROW((void)open_torch_checkpoint(kWritten), UsageError);
  const fs::path folder = copy_of("torch_checkpoint");
  const std::string metadata = contents(folder / ".metadata"), second = contents(folder / "__1_0.distcp");
  fs::remove(folder / "__1_0.distcp");
  EXPECT_THAT(said(folder), HasSubstr("__1_0.distcp"));
  write(folder / "__1_0.distcp", second.substr(0, second.size() - 4000));
  EXPECT_THAT(said(folder), HasSubstr("it is cut off"));
  std::string bytes = second;
  for (std::size_t i = 0; i < bytes.size(); i += 7) bytes[i] = 'x';
  write(folder / "__1_0.distcp", bytes);
  EXPECT_THAT(said(folder), HasSubstr("it is no archive of torch.save(), or is damaged"));
  write(folder / "__1_0.distcp", second);
  EXPECT_EQ(said(folder), "nothing");
  const auto with = [&](const std::string& old, const std::string& other) {
    std::string changed = metadata;
    for (std::size_t at = changed.find(old); at != std::string::npos; at = changed.find(old, at + 1))
      changed.replace(at, old.size(), other);
    write(folder / ".metadata", changed);
    return said(folder);
  };
  EXPECT_THAT(with("__1_0.distcp", "../_0.distcp"), HasSubstr("outside of the folder"));
  EXPECT_THAT(with("float32", "floatXX"), HasSubstr("torch.floatXX, which is not read"));
  EXPECT_THROW((void)open_torch_checkpoint(folder), UsageError) << "nothing of it is damaged";
  EXPECT_THAT(with("TensorStorageMetadata", "TensorStorageMetaxxxx"), "nothing") << "none of them is a tensor";
  EXPECT_THAT(with("storage_data", "storage_dxta"), HasSubstr("Metadata has no storage_data"));
  fs::resize_file(folder / ".metadata", (64 << 20) + 1);
  EXPECT_THAT(said(folder), HasSubstr("and at most 64.0 MiB are read"));
}

/// Whatever has become of its bytes, it is refused or has tensors, and nothing else comes of it.
TEST(TorchCheckpoint, ThatIsDamagedAnywhereIsRefusedOrRead) {
  const fs::path folder = copy_of("torch_checkpoint");
  const std::string metadata = contents(folder / ".metadata");
  std::mt19937 random(5);  // NOLINT: the same each time
  int refused = 0;
  for (std::size_t length = 0; length < metadata.size(); length += 11) {
    write(folder / ".metadata", metadata.substr(0, length));
    EXPECT_THROW((void)open_torch_checkpoint(folder), DamagedFile) << length;
  }
  for (int i = 0; i < 500; ++i) {
    std::string bytes = metadata;
    for (int k = 0; k <= i % 3; ++k) bytes[random() % bytes.size()] = static_cast<char>(random());
    write(folder / ".metadata", bytes);
    refused += said(folder) == "nothing" ? 0 : 1;
  }
  EXPECT_GT(refused, 250);
}

}  // namespace
}  // namespace snug::state
