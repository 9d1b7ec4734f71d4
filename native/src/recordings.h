// Calls that come again with the same arguments, recorded as graphs of CUDA: launching a graph takes the host a third of the
// time of NCCL's own call, and XLA gives the same few addresses to a program that runs again and again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace collops {

// The operation and everything that it is called with; an operation of 0 is never recorded.
struct Call {
  std::uint64_t operation = 0;
  std::array<std::uintptr_t, 3> arguments{};

  bool operator<(const Call& other) const {
    return operation != other.operation ? operation < other.operation : arguments < other.arguments;
  }
};

// Errors of both libraries; 0 where there is none.
struct Codes {
  int nccl = 0;
  int cuda = 0;
};

// Those of one communicator on one device.
class Recordings {
 public:
  using Stream = void*;

  Recordings() = default;
  Recordings(const Recordings&) = delete;
  Recordings& operator=(const Recordings&) = delete;

  // Does on `stream` what `enqueue(stream)` does. Another rank may do otherwise: one calls NCCL where another launches
  // what it has recorded, and both do the same on their devices.
  template <class Enqueue>
  Codes run(const Call& call, Stream stream, Enqueue enqueue) {
    bool captured = false;  // by XLA, which records the whole program and takes NCCL's own calls
    if (const int code = is_captured(stream, captured)) return {0, code};
    if (captured) return {enqueue(stream), 0};
    const std::lock_guard<std::mutex> lock(mutex_);
    Known& known = find(call);
    if (known.graph == nullptr) {
      if (++known.calls <= kCallsBefore) return {enqueue(stream), 0};
      if (const int code = begin()) return {0, code};
      const int nccl = enqueue(side_);
      const int cuda = end(nccl ? nullptr : &known);
      if (nccl || cuda) return {nccl, cuda};
    }
    return {0, launch(known, stream)};
  }

  static constexpr std::size_t kMost = 128;
  // NCCL sets up what it needs for a kind of call at the first of them, which no recording may do.
  static constexpr int kCallsBefore = 2;

 private:
  struct Known {
    void* graph = nullptr;  // CUgraphExec
    int calls = 0;
    std::uint64_t last = 0;
  };

  Known& find(const Call& call);
  static int is_captured(Stream stream, bool& answer);
  int begin();
  int end(Known* known);  // null: what was recorded is of no use
  static int launch(const Known& known, Stream stream);

  std::mutex mutex_;
  std::map<Call, Known> known_;
  std::uint64_t now_ = 0;
  Stream side_ = nullptr;
};

// Whether CUDA's functions are there.
bool can_record();

}  // namespace collops
