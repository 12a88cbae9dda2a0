#include "snug/state/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "snug/base/damaged_file.h"
#include "snug/base/errors.h"
#include "snug/state/safetensors_header.h"

namespace snug::state {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

fs::path reference() { return fs::path(SNUG_TESTS) / "state" / "reference.safetensors"; }

fs::path path_for(const std::string& name) {
  const fs::path folder = fs::path(::testing::TempDir()) / "snug_safetensors";
  fs::create_directories(folder);
  return folder / name;
}

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string file(const std::string& header, const std::string& data = "") {
  const std::uint64_t length = header.size();
  std::string all(reinterpret_cast<const char*>(&length), sizeof(length));
  return all + header + data;
}

SafetensorsHeader parse(const std::string& bytes) {
  return parse_safetensors_header({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, "f");
}

std::string header_fault(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const DamagedFile& error) {
    return error.what();
  }
  return "none";
}

TEST(Safetensors, ReadsWhatTheReferenceImplementationWrote) {
  const Safetensors all = open_safetensors(reference());
  EXPECT_EQ(all.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(all.tensors.size(), 8U);
  const auto read = [&](const char* name) { return all.tensors.at(name).read(); };
  EXPECT_TRUE(at::equal(read("a.bias"), at::arange(5).to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(read("b.half"), at::linspace(-1, 1, 6).to(at::kHalf).view({2, 3})));
  EXPECT_TRUE(at::equal(read("flags"), torch::tensor({true, false, true})));
  EXPECT_EQ(read("steps").item<std::int64_t>(), 7);
  EXPECT_EQ(read("steps").dim(), 0);
  EXPECT_EQ(read("empty").sizes(), (std::vector<std::int64_t>{0, 3}));
  torch::manual_seed(0);
  EXPECT_TRUE(at::equal(read("weight"), torch::randn({3, 4})));
  EXPECT_EQ(all.tensors.at("double").dtype, at::kDouble);
}

TEST(Safetensors, WritesTheSameBytesAsTheReferenceImplementation) {
  const Safetensors all = open_safetensors(reference());
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, tensor] : all.tensors) tensors.emplace_back(name, tensor.read());
  const fs::path path = path_for("same.safetensors");
  write_safetensors(path, {tensors.begin(), tensors.end()}, all.metadata);
  EXPECT_EQ(bytes_of(path), bytes_of(reference()));
  EXPECT_FALSE(fs::exists(path.string() + ".unfinished"));
}

TEST(Safetensors, WritesViewsAndReadsThemBack) {
  const at::Tensor whole = torch::randn({6, 4}), complex = torch::randn({3}, at::kComplexFloat);
  const fs::path path = path_for("views.safetensors");
  write_safetensors(path, {{"t", whole.t()}, {"part", whole.narrow(0, 1, 2)}, {"conjugated", complex.conj()}});
  const auto all = open_safetensors(path).tensors;
  EXPECT_TRUE(at::equal(all.at("t").read(), whole.t()));
  EXPECT_TRUE(at::equal(all.at("part").read(), whole.narrow(0, 1, 2)));
  EXPECT_TRUE(at::equal(all.at("conjugated").read(), complex.conj()));
}

TEST(Safetensors, TensorsAreViewsThatKeepTheFileAndNeverReachIt) {
  const fs::path path = path_for("mapped.safetensors");
  write_safetensors(path, {{"x", torch::zeros({1024})}});
  const std::string before = bytes_of(path);
  at::Tensor x = open_safetensors(path).tensors.at("x").read();
  x.fill_(1);
  EXPECT_EQ(x.sum().item<float>(), 1024);
  EXPECT_EQ(bytes_of(path), before);
  EXPECT_EQ(open_safetensors(path).tensors.at("x").read().sum().item<float>(), 0);
}

TEST(Safetensors, WhatWasThereStaysWhenWritingFails) {
  const fs::path path = path_for("stays.safetensors");
  write_safetensors(path, {{"x", torch::ones({2})}});
  const std::string before = bytes_of(path);
  EXPECT_THROW(write_safetensors(path, {{"x", torch::ones({2})}, {"x", torch::ones({2})}}), UsageError);
  EXPECT_THROW(write_safetensors(path, {{"x", torch::zeros({2}, at::kComplexDouble)}}), UsageError);
  EXPECT_EQ(bytes_of(path), before);
  try {
    write_safetensors(path_for("no folder") / "x.safetensors", {{"x", torch::ones({2})}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("No such file or directory"));
  }
}

TEST(Safetensors, ADamagedFileSaysWhere) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(parse(file(good, std::string(8, 'x'))).tensors.size(), 1U);
  EXPECT_EQ(parse(file("{}")).tensors.size(), 0U);
  EXPECT_THAT(header_fault("1234567"), HasSubstr("header too small"));
  EXPECT_THAT(header_fault(std::string(8, '\xff')), HasSubstr("header too large"));
  EXPECT_THAT(header_fault(file(good).substr(0, 20)), HasSubstr("invalid header length"));
  EXPECT_THAT(header_fault(file("[]")), HasSubstr("does not begin with {"));
  EXPECT_THAT(header_fault(file("{\"a\"")), HasSubstr("no JSON"));
  EXPECT_THAT(header_fault(file("{\"\xff\":1}")), HasSubstr("no JSON"));
  EXPECT_THAT(header_fault(file(good, "1234567")), HasSubstr("invalid offset: bytes 0 to 8 of 7"));
  EXPECT_THAT(header_fault(file(good, "123456789")), HasSubstr("incomplete metadata"));
  const auto one = [](const std::string& entry) { return file("{\"a\":" + entry + "}", std::string(8, 'x')); };
  EXPECT_THAT(header_fault(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})")), HasSubstr("takes 12 bytes"));
  EXPECT_THAT(header_fault(one(R"({"dtype":"F4","shape":[2],"data_offsets":[0,8]})")), HasSubstr("no element type F4"));
  EXPECT_THAT(header_fault(one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})")), HasSubstr("no count"));
  EXPECT_THAT(header_fault(one(R"({"dtype":"F32","shape":[2.5],"data_offsets":[0,8]})")), HasSubstr("no count"));
  EXPECT_THAT(
      header_fault(one(R"({"dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,8]})")),
      HasSubstr("more elements than can be counted"));
  EXPECT_THAT(header_fault(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})")), HasSubstr("invalid offset"));
  EXPECT_THAT(header_fault(one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})")), HasSubstr("begins at byte 4"));
  EXPECT_THAT(header_fault(one(R"({"dtype":"F32","shape":[2]})")),
              HasSubstr("must have dtype, shape and two data_offsets"));
  EXPECT_THAT(header_fault(file(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],)"
                                R"("data_offsets":[2,6]}})",
                                "123456")),
              HasSubstr("tensor b: invalid offset"));
  EXPECT_THAT(header_fault(file(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],)"
                                R"("data_offsets":[0,0]}})")),
              HasSubstr("two tensors have the name a"));
  EXPECT_THAT(header_fault(file(R"({"__metadata__":{"a":1}})")), HasSubstr("__metadata__.a is a number, and no text"));
}

TEST(Safetensors, AHeaderOfAnyDepthAndAnyLengthIsReadInOneGo) {
  const std::string deep(200'000, '[');
  EXPECT_THAT(header_fault(file("{\"a\":" + deep)), HasSubstr("a is an array"));
  EXPECT_THAT(header_fault(file("{\"a\":{\"shape\":" + deep)), HasSubstr("no count"));
  EXPECT_THAT(header_fault(file("{\"a\":{\"other\":" + deep)), HasSubstr("tensor a: other holds an array"));
  EXPECT_THAT(header_fault(file("{\"__metadata__\":{\"b\":" + deep)), HasSubstr("is an array"));
  EXPECT_THAT(header_fault(file(R"({"a":{"dtype":"F32","dtype":"F32","shape":[0],"data_offsets":[0,0]}})")),
              HasSubstr("dtype is there twice in a"));
  EXPECT_THAT(header_fault(file(std::string("{}\0rest", 7))), HasSubstr("a byte of 0"));
  EXPECT_THAT(header_fault(file(R"({"a":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})")),
              HasSubstr("more elements than can be counted"));
  EXPECT_EQ(header_fault(
                file(R"({"__metadata__":null,"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"note":"x","n":1}})")),
            "none");
  std::string many = "{";
  for (int i = 0; i < 100'000; ++i) {
    many += fmt::format("{}\"{}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", i == 0 ? "" : ",", i);
  }
  EXPECT_EQ(parse(file(many + "}")).tensors.size(), 100'000U);
}

TEST(Safetensors, NamesThatTheFormatDoesNotHaveAreNotWritten) {
  const fs::path path = path_for("names.safetensors");
  EXPECT_THROW(write_safetensors(path, {{"\xff", torch::ones({1})}}), UsageError);
  EXPECT_THROW(write_safetensors(path, {{"__metadata__", torch::ones({1})}}), UsageError);
  EXPECT_THROW(write_safetensors(path, {{"a", torch::ones({1})}}, {{"k", "\xff"}}), UsageError);
  EXPECT_FALSE(fs::exists(path));
}

TEST(Safetensors, MissingFilesAndFolders) {
  EXPECT_THROW(open_safetensors(path_for("nowhere.safetensors")), UsageError);
  EXPECT_THROW(open_safetensors(path_for("")), UsageError);
}

TEST(Safetensors, ReadsShardsByTheirIndex) {
  const fs::path folder = path_for("sharded");
  fs::remove_all(folder);
  fs::create_directories(folder);
  write_safetensors(folder / "model-00001-of-00002.safetensors",
                    {{"a", torch::ones({2})}, {"beyond", torch::ones({1})}});
  write_safetensors(folder / "model-00002-of-00002.safetensors", {{"b", torch::zeros({3})}});
  const auto index = [&](const std::string& map) {
    std::ofstream(folder / "model.safetensors.index.json")
        << R"({"metadata":{"total_size":20},"weight_map":)" << map << "}";
  };
  index(R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})");
  for (const fs::path& path : {folder, folder / "model.safetensors.index.json"}) {
    const StoredTensors all = open_sharded_safetensors(path);
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all.at("a").read().sum().item<float>(), 2);
    EXPECT_EQ(all.at("b").read().numel(), 3);
  }
  index(R"({"a":"model-00002-of-00002.safetensors"})");
  EXPECT_THROW(open_sharded_safetensors(folder), DamagedFile);
  index(R"({"a":"../sharded/model-00001-of-00002.safetensors"})");
  EXPECT_THROW(open_sharded_safetensors(folder), DamagedFile);
  index("7");
  EXPECT_THROW(open_sharded_safetensors(folder), DamagedFile);
  fs::remove(folder / "model.safetensors.index.json");
  write_safetensors(folder / "model.safetensors", {{"only", torch::ones({2})}});
  EXPECT_EQ(open_sharded_safetensors(folder).size(), 1U);
}

}  // namespace
}  // namespace snug::state
