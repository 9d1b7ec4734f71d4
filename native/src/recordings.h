// Repeated calls with the same arguments, recorded as CUDA graphs: launching a graph takes a third of the host time of NCCL's own
// call, and XLA passes the same few addresses to a program that runs repeatedly.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace collops {

// An operation and all its arguments; operation 0 is never recorded.
struct Call {
  std::uint64_t operation = 0;
  std::array<std::uintptr_t, 3> arguments{};

  bool operator<(const Call& other) const {
    return operation != other.operation ? operation < other.operation : arguments < other.arguments;
  }
};

// Error codes of both libraries; 0 means success.
struct Codes {
  int nccl = 0;
  int cuda = 0;
};

// The recorded calls of one communicator on one device.
class Recordings {
 public:
  using Stream = void*;

  Recordings() = default;
  Recordings(const Recordings&) = delete;
  Recordings& operator=(const Recordings&) = delete;

  // Has the same effect on `stream` as `enqueue(stream)`. Ranks need not agree: one may call NCCL while another launches its
  // recording; the devices do the same.
  template <class Enqueue>
  Codes run(const Call& call, Stream stream, Enqueue enqueue) {
    bool captured = false;  // by XLA, which records the whole program including NCCL's own calls
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
  // NCCL allocates resources in the first call of a kind, which must not be recorded.
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
  int end(Known* known);  // null: discard the recording
  static int launch(const Known& known, Stream stream);

  std::mutex mutex_;
  std::map<Call, Known> known_;
  std::uint64_t now_ = 0;
  Stream side_ = nullptr;
};

// Whether the CUDA functions have been set.
bool can_record();

}  // namespace collops
