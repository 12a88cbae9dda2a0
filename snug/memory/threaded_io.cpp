#include <sys/uio.h>

#include <cerrno>
#include <exception>
#include <future>
#include <system_error>
#include <vector>

#include "snug/memory/host_threads.h"
#include "snug/memory/piece_io.h"

namespace snug::memory {
namespace {

void transfer_whole(int file, Way way, Piece piece) {
  while (!piece.memory.empty()) {
    const auto parts = static_cast<int>(piece.memory.size());
    const auto offset = static_cast<off_t>(piece.offset);
    const ssize_t count = way == Way::ToFile ? ::pwritev(file, piece.memory.data(), parts, offset)
                                             : ::preadv(file, piece.memory.data(), parts, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count < 0 ? errno : way == Way::ToFile ? ENOSPC : EIO;
      throw std::system_error(error, std::generic_category(), way == Way::ToFile ? "pwritev" : "preadv");
    }
    piece.skip(count);
  }
}

class ThreadedIo final : public PieceIo {
 public:
  void transfer(int file, Way way, std::span<const Piece> pieces) override {
    if (pieces.size() == 1) return transfer_whole(file, way, pieces.front());
    std::vector<std::shared_future<void>> all;
    for (const Piece& piece : pieces) all.push_back(threads_.run([=] { transfer_whole(file, way, piece); }));
    for (const auto& one : all) one.wait();
    for (const auto& one : all) one.get();
  }

 private:
  HostThreads threads_{4};
};

}  // namespace

std::unique_ptr<PieceIo> threaded_io() { return std::make_unique<ThreadedIo>(); }

}  // namespace snug::memory
