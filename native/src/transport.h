// The interface of the transports, which move arrays between ranks: MPI, NCCL, a single rank, and host devices of a process.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api.h"

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
  void* status = nullptr;  // MPI's status of a receive, to be filled; null: none
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
  // Collective calls that this rank has begun.
  std::int64_t calls() const { return calls_; }

  // Sets the functions of Python that agree on calls and look after waits. Called before the first call.
  void watch(Agree agree, Look look) {
    agree_ = agree;
    look_ = look;
  }
  // Makes every later call fail. After a rank has given up a wait, its next call could be matched with another call of the other
  // ranks.
  void give_up() { broken_ = true; }
  bool watched() const { return look_ != nullptr; }
  // Begins a call, which Python knows as `call`; a failure if the transport is broken or the ranks do not agree on the call.
  virtual Failure begin(std::string_view call, bool collective, Place) {
    if (watched()) call_ = call;
    if (broken_) return look(kRefused, 0.0);
    if (agree_ != nullptr) {
      const char* failure = kInterrupted;
      agree_(&failure, call.data(), call.size());
      if (failure != nullptr) return failure;
    }
    if (collective) ++calls_;
    return {};
  }

  // Lets Python look after a wait before this rank begins the collective `call`; see Look.
  Failure look_before(std::string_view call, int looks, double seconds, const std::string& note) {
    return ask(call, calls_ + 1, looks, seconds, note.c_str());
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
  // Lets Python look after a wait of the current call, at which it has looked `looks` times and which has taken so many seconds. A
  // failure if the wait must end.
  Failure look(int looks, double seconds) { return ask(call_, calls_, looks, seconds, ""); }

 private:
  static constexpr const char* kInterrupted = "KeyboardInterrupt: ";

  Failure ask(std::string_view call, std::int64_t calls, int looks, double seconds, const char* note) {
    if (!watched()) return {};
    const char* failure = kInterrupted;
    look_(&failure, call.data(), call.size(), calls, looks, seconds, note);
    if (failure == nullptr) return {};
    give_up();
    return failure;
  }

  int rank_;
  int size_;
  Agree agree_ = nullptr;
  Look look_ = nullptr;
  std::string_view call_;  // calls of one transport follow each other
  std::atomic<std::int64_t> calls_{0};
  std::atomic<bool> broken_{false};
};

// A compiled program refers to a transport by its number, not by an address. Transports live as long as the process.
std::int64_t add_transport(std::unique_ptr<Transport> transport);
Transport* find_transport(std::int64_t number);

}  // namespace collops
