// The disk's tier in turns with fio (Debian: fio): contents written to and read from a file without a name in the
// folder that TMPDIR names, checksums included, and fio's sequential direct I/O there with the same block size.
//
// Usage: disk_benchmark [ROUNDS]. Prints medians of MiB/s, and of the ratio with its quartiles.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/clock.h"
#include "snug/memory/links.h"
#include "snug/memory/page_heap.h"
#include "snug/memory/spill_file.h"

namespace snug {
namespace {

constexpr Bytes kAll = 512_MiB;
constexpr double kMiB = 1_MiB;

struct Speeds {
  double write = 0, read = 0;  // MiB/s
};

class Ours {
 public:
  explicit Ours(Bytes block) : block_(static_cast<std::size_t>(block)) {
    // As the allocator has them: behind a header.
    constexpr Bytes kHeader = 64;
    for (Bytes bytes = 0; bytes < kAll; bytes += block) {
      std::byte* const contents = heap_.take(block + PageHeap::kPage) + kHeader;
      std::memset(contents, static_cast<int>(bytes / block), block_);
      contents_.push_back(contents);
    }
    measure();  // the file has its room then, as after a first step
  }
  Speeds measure() {
    std::vector<memory::SpillFile::Block> blocks;
    std::vector<memory::StreamMark> marks;
    for (const std::byte* const c : contents_) blocks.push_back(file_.reserve({c, block_}));
    const auto wait = [&] {
      for (const memory::StreamMark& mark : marks) mark.wait();
      marks.clear();
    };
    const double began = monotonic_seconds();
    for (std::size_t i = 0; i < blocks.size(); ++i)
      marks.push_back(links_.to_disk([&, i] { file_.write(blocks[i], {contents_[i], block_}); }));
    wait();
    const double written = monotonic_seconds();
    for (std::size_t i = 0; i < blocks.size(); ++i)
      marks.push_back(links_.from_disk([&, i] { file_.read(blocks[i], {contents_[i], block_}); }));
    wait();
    const double read = monotonic_seconds();
    const double all = kAll / kMiB;
    return {all / (written - began), all / (read - written)};
  }

 private:
  using PageHeap = memory::PageHeap;
  std::size_t block_;
  PageHeap heap_;
  memory::SpillFile file_;
  memory::Links links_;
  std::vector<std::byte*> contents_;
};

/// A file of its own, which has its room before it is measured.
class Fio {
 public:
  Fio(Bytes block, int depth) : block_(block), depth_(depth) {
    const char* const folder = std::getenv("TMPDIR");
    path_ = std::string(folder != nullptr ? folder : "/tmp") + "/snug-fio";
    run("write");
  }
  ~Fio() { std::filesystem::remove(path_); }
  Fio(const Fio&) = delete;
  Fio& operator=(const Fio&) = delete;
  Speeds measure() const { return {run("write"), run("read")}; }

 private:
  double run(const char* way) const {
    const std::string command = fmt::format(
        "fio --name=snug --filename={} --rw={} --bs={} --size={} --iodepth={} --overwrite=1 --direct=1 "
        "--ioengine=io_uring "
        "--output-format=json",
        path_, way, block_, kAll, depth_);
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(::popen(command.c_str(), "r"), &::pclose);
    std::string text;
    std::array<char, 4096> part{};
    while (out && std::fgets(part.data(), part.size(), out.get()) != nullptr) text += part.data();
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) throw std::runtime_error("disk_benchmark: fio says nothing; install it (Debian: fio)");
    return json.at("jobs").at(0).at(way).at("bw_bytes").get<double>() / kMiB;
  }
  std::string path_;
  Bytes block_;
  int depth_;
};

std::string median_of(std::vector<double> all) {
  std::ranges::sort(all);
  return fmt::format("{:.0f}", all[all.size() / 2]);
}
std::string with_quartiles(std::vector<double> all) {
  std::ranges::sort(all);
  return fmt::format("x {:.2f} ({:.2f} to {:.2f})", all[all.size() / 2], all[all.size() / 4], all[all.size() * 3 / 4]);
}

void compare(Bytes block, int depth, int rounds) {
  Ours ours(block);
  const Fio fio(block, depth);
  std::vector<double> our_writes, our_reads, fio_writes, fio_reads, writes, reads;
  for (int i = 0; i < rounds; ++i) {
    const Speeds us = ours.measure(), them = fio.measure();
    our_writes.push_back(us.write);
    our_reads.push_back(us.read);
    fio_writes.push_back(them.write);
    fio_reads.push_back(them.read);
    writes.push_back(us.write / them.write);
    reads.push_back(us.read / them.read);
  }
  fmt::print("| {} | {} | {} | {} | {} | {} | {} | {} |\n", format_bytes(block), depth, median_of(our_writes),
             median_of(fio_writes), with_quartiles(writes), median_of(our_reads), median_of(fio_reads),
             with_quartiles(reads));
  std::fflush(stdout);
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) try {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  fmt::print(
      "| block | fio's depth | written, MiB/s | fio | ratio | read, MiB/s | fio | ratio "
      "|\n|---|---|---|---|---|---|---|---|\n");
  for (const snug::Bytes block : {snug::operator""_KiB(256), snug::operator""_MiB(1), snug::operator""_MiB(8)}) {
    for (const int depth : {1, 4}) snug::compare(block, depth, rounds);
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
