#include <unistd.h>

#include <array>
#include <cerrno>
#include <exception>
#include <future>
#include <system_error>
#include <vector>

#include "snug/memory/host_thread.h"
#include "snug/memory/piece_io.h"

namespace snug::memory {
namespace {

void transfer_whole(int file, Way way, Piece piece) {
  while (piece.length > 0) {
    const auto length = static_cast<std::size_t>(piece.length);
    const auto offset = static_cast<off_t>(piece.offset);
    const ssize_t count =
        way == Way::ToFile ? ::pwrite(file, piece.memory, length, offset) : ::pread(file, piece.memory, length, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count < 0 ? errno : way == Way::ToFile ? ENOSPC : EIO;
      throw std::system_error(error, std::generic_category(), way == Way::ToFile ? "pwrite" : "pread");
    }
    piece = {piece.offset + count, piece.memory + count, piece.length - count};
  }
}

class ThreadedIo final : public PieceIo {
 public:
  void transfer(int file, Way way, std::span<const Piece> pieces) override {
    if (pieces.size() == 1) return transfer_whole(file, way, pieces.front());
    std::vector<std::shared_future<void>> all;
    for (const Piece& piece : pieces)
      all.push_back(threads_[all.size() % threads_.size()].run([=] { transfer_whole(file, way, piece); }));
    for (const auto& one : all) one.wait();
    for (const auto& one : all) one.get();
  }

 private:
  static constexpr std::size_t kThreads = 4;
  std::array<HostThread, kThreads> threads_;
};

}  // namespace

std::unique_ptr<PieceIo> threaded_io() { return std::make_unique<ThreadedIo>(); }

std::unique_ptr<PieceIo> piece_io() {
  auto ring = uring_io();
  return ring ? std::move(ring) : threaded_io();
}

}  // namespace snug::memory
