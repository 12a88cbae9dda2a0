// Direct I/O by way of io_uring. Where liburing is missing, no_uring_io.cpp stands in for this file.
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <system_error>
#include <utility>
#include <vector>

#include "snug/memory/piece_io.h"

namespace snug::memory {
namespace {

constexpr unsigned kPieces = 16;  // under way at once

class UringIo final : public PieceIo {
 public:
  /// Throws std::system_error.
  UringIo() {
    make_ring();
    for (std::size_t place = 0; place < kPieces; ++place) free_.push_back(place);
  }
  ~UringIo() override { ::io_uring_queue_exit(&ring_); }
  UringIo(const UringIo&) = delete;
  UringIo& operator=(const UringIo&) = delete;

  void transfer(int file, Way way, std::span<const Piece> pieces) override {
    // A forked process would take what is completed from the one that it comes of.
    if (process_ != ::getpid()) make_ring();
    // Nothing is allocated while anything is under way.
    left_.assign(pieces.rbegin(), pieces.rend());
    file_ = file;
    way_ = way;
    error_ = 0;
    std::size_t prepared = 0, submitted = 0;
    while (!left_.empty() || prepared + submitted > 0) {
      for (; !left_.empty() && !free_.empty(); ++prepared) begin();
      const int result = ::io_uring_submit_and_wait(&ring_, 1);
      if (result >= 0) {
        submitted += static_cast<std::size_t>(result);
        prepared -= static_cast<std::size_t>(result);
      } else if (result != -EINTR && result != -EAGAIN && result != -EBUSY) {
        fail(-result);
        break;
      }
      submitted -= take_completed();
    }
    // What was prepared and not submitted never is: the ring is not used again.
    for (; submitted > 0; submitted -= take_completed()) {
      io_uring_cqe* done = nullptr;
      ::io_uring_wait_cqe(&ring_, &done);
    }
    if (error_ != 0) throw std::system_error(error_, std::generic_category(), way == Way::ToFile ? "write" : "read");
  }

 private:
  void make_ring() {
    ring_ = {};
    const int error = ::io_uring_queue_init(kPieces, &ring_, 0);
    if (error < 0) throw std::system_error(-error, std::generic_category(), "io_uring_setup");
    process_ = ::getpid();
  }

  void begin() {
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);  // there are as many as places
    const std::size_t place = free_.back();
    free_.pop_back();
    Piece& piece = under_way_[place] = std::move(left_.back());
    left_.pop_back();
    const auto parts = static_cast<unsigned>(piece.memory.size());
    const auto offset = static_cast<std::uint64_t>(piece.offset);
    if (way_ == Way::ToFile) {
      ::io_uring_prep_writev(entry, file_, piece.memory.data(), parts, offset);
    } else {
      ::io_uring_prep_readv(entry, file_, piece.memory.data(), parts, offset);
    }
    ::io_uring_sqe_set_data64(entry, place);
  }

  std::size_t take_completed() {
    std::size_t count = 0;
    io_uring_cqe* done = nullptr;
    for (; ::io_uring_peek_cqe(&ring_, &done) == 0; ++count) {
      const std::size_t place = ::io_uring_cqe_get_data64(done);
      end(std::move(under_way_[place]), done->res);
      free_.push_back(place);
      ::io_uring_cqe_seen(&ring_, done);
    }
    return count;
  }

  void end(Piece piece, int result) {
    if (result == 0 || (result < 0 && result != -EINTR && result != -EAGAIN)) {
      fail(result < 0 ? -result : way_ == Way::ToFile ? ENOSPC : EIO);
      return;
    }
    piece.skip(std::max(result, 0));
    if (error_ == 0 && !piece.memory.empty()) left_.push_back(std::move(piece));
  }
  /// What is under way ends first.
  void fail(int error) {
    if (error_ == 0) error_ = error;
    left_.clear();
  }

  io_uring ring_{};
  ::pid_t process_ = 0;  // whose it is
  int file_ = -1, error_ = 0;
  Way way_ = Way::ToFile;
  std::vector<Piece> left_;  // the next one last
  std::array<Piece, kPieces> under_way_;
  std::vector<std::size_t> free_;  // places there
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
