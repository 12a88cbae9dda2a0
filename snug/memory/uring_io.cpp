// Direct I/O by way of io_uring. Where liburing is missing, no_uring_io.cpp stands in for this file.
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <system_error>
#include <utility>
#include <vector>

#include "snug/memory/piece_io.h"

namespace snug::memory {
namespace {

constexpr unsigned kAtOnce = 16;

class UringIo final : public PieceIo {
 public:
  /// Throws std::system_error.
  UringIo() {
    const int error = ::io_uring_queue_init(kAtOnce, &ring_, 0);
    if (error < 0) throw std::system_error(-error, std::generic_category(), "io_uring_setup");
  }
  ~UringIo() override { ::io_uring_queue_exit(&ring_); }
  UringIo(const UringIo&) = delete;
  UringIo& operator=(const UringIo&) = delete;

  void transfer(int file, Way way, std::span<const Piece> pieces) override {
    file_ = file;
    way_ = way;
    left_.assign(pieces.rbegin(), pieces.rend());
    under_way_.clear();
    error_ = 0;
    unsigned prepared = 0, submitted = 0;
    while (!left_.empty() || prepared + submitted > 0) {
      for (; !left_.empty() && prepared + submitted < kAtOnce; ++prepared) begin();
      const int result = ::io_uring_submit_and_wait(&ring_, 1);
      if (result >= 0) {
        submitted += static_cast<unsigned>(result);
        prepared -= static_cast<unsigned>(result);
      } else if (result != -EINTR && result != -EAGAIN && result != -EBUSY) {
        fail(-result);
        prepared = 0;  // never: the ring is not used again
      }
      io_uring_cqe* done = nullptr;
      while (::io_uring_peek_cqe(&ring_, &done) == 0) {
        end(under_way_[::io_uring_cqe_get_data64(done)], done->res);
        ::io_uring_cqe_seen(&ring_, done);
        --submitted;
      }
    }
    if (error_ != 0) throw std::system_error(error_, std::generic_category(), way == Way::ToFile ? "write" : "read");
  }

 private:
  void begin() {
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);  // as many are free as are not under way
    const Piece& piece = under_way_.emplace_back(std::move(left_.back()));
    left_.pop_back();
    const auto parts = static_cast<unsigned>(piece.memory.size());
    const auto offset = static_cast<std::uint64_t>(piece.offset);
    if (way_ == Way::ToFile) {
      ::io_uring_prep_writev(entry, file_, piece.memory.data(), parts, offset);
    } else {
      ::io_uring_prep_readv(entry, file_, piece.memory.data(), parts, offset);
    }
    ::io_uring_sqe_set_data64(entry, under_way_.size() - 1);
  }

  void end(const Piece& piece, int result) {
    if (result == -EINTR || result == -EAGAIN) {
      left_.push_back(piece);
    } else if (result <= 0) {
      fail(result < 0 ? -result : way_ == Way::ToFile ? ENOSPC : EIO);
    } else if (result < piece.length()) {
      left_.push_back(piece.behind(result));
    }
  }
  /// What is under way ends first.
  void fail(int error) {
    if (error_ == 0) error_ = error;
    left_.clear();
  }

  io_uring ring_{};
  int file_ = -1, error_ = 0;
  Way way_ = Way::ToFile;
  std::vector<Piece> left_;      // the next one last
  std::deque<Piece> under_way_;  // all that have begun, as what completes names its place
};

}  // namespace

std::unique_ptr<PieceIo> uring_io() {
  try {
    return std::make_unique<UringIo>();
  } catch (const std::system_error&) {
    return nullptr;
  }
}

}  // namespace snug::memory
