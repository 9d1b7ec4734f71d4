// The interface of the transports, which move arrays between ranks: MPI, NCCL, a single rank, and host devices of a process.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace collops {

// Both enumerations have the order of src/collops/jax/native.py.
enum class Type : int { Bool, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64, C64, C128, None };
enum class Op : int { Sum, Prod, Min, Max, LAnd, LOr, LXor };
constexpr int kTypes = static_cast<int>(Type::None);
constexpr int kOps = 7;

// Bytes of an element.
inline int width_of(Type type) {
  constexpr int widths[kTypes] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16};
  return widths[static_cast<int>(type)];
}

// Empty on success, else the error message.
using Failure = std::string;
using Counts = std::vector<std::int64_t>;

struct Message {
  int peer;
  int tag;
  void* data;
  std::int64_t count;  // elements
  int width;           // bytes of one element
};

// Where a call runs: on a stream of a device; on the host if the stream is null. A process may have several host devices.
struct Place {
  void* stream = nullptr;
  int device = 0;
};

// Counts are in elements.
class Transport {
 public:
  Transport(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Why the transport cannot be used any more, or empty. After a rank has given up a wait, its next call could be matched with
  // another call of the other ranks.
  Failure broken() const {
    const std::lock_guard<std::mutex> lock(broken_mutex_);
    return broken_;
  }

  virtual Failure allreduce(const void* in, void* out, std::int64_t count, Type type, Op op, Place at) = 0;
  // Fills `out` on `root`; on other ranks `out` may be overwritten.
  virtual Failure reduce(const void* in, void* out, std::int64_t count, Type type, Op op, int root, Place at) = 0;
  virtual Failure bcast(const void* in, void* out, std::int64_t count, int width, int root, Place at) = 0;
  virtual Failure allgather(const void* in, void* out, const Counts& counts, int width, Place at) = 0;
  virtual Failure gather(const void* in, void* out, std::int64_t count, int width, int root, Place at) = 0;
  virtual Failure scatter(const void* in, void* out, std::int64_t count, int width, int root, Place at) = 0;
  virtual Failure reduce_scatter(const void* in, void* out, const Counts& counts, Type type, Op op, Place at) = 0;
  virtual Failure alltoall(const void* in, void* out, const Counts& leaving, const Counts& arriving, int width,
                           Place at) = 0;
  virtual Failure exchange(const std::vector<Message>& sends, const std::vector<Message>& receives, Place at) = 0;
  // `scratch` is one byte of scratch memory.
  virtual Failure barrier(void* scratch, Place at) = 0;

 protected:
  Failure give_up(Failure why) {
    const std::lock_guard<std::mutex> lock(broken_mutex_);
    broken_ = why;
    return why;
  }

 private:
  int rank_;
  int size_;
  mutable std::mutex broken_mutex_;  // several devices of a process call at once
  Failure broken_;
};

// A compiled program refers to a transport by its number, not by an address. Transports live as long as the process.
std::int64_t add_transport(std::unique_ptr<Transport> transport);
Transport* find_transport(std::int64_t number);

}  // namespace collops
