// What carries arrays between ranks: one interface for MPI, NCCL and a world of one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace collops {

// The order of both lists is that of src/collops/jax/native.py.
enum class Type : int { Bool, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64, C64, C128, None };
enum class Op : int { Sum, Prod, Min, Max, LAnd, LOr, LXor };
constexpr int kTypes = static_cast<int>(Type::None);
constexpr int kOps = 7;

// Empty when all went well; otherwise what to tell the user.
using Failure = std::string;
using Counts = std::vector<std::int64_t>;

struct Message {
  int peer;
  int tag;
  void* data;
  std::int64_t count;  // elements
  int width;           // bytes of one element
};

// Where the work is to be done: on a stream of a device, or here and now.
struct Place {
  void* stream = nullptr;
  int device = 0;
};

// Counts are in elements.
class Wire {
 public:
  Wire(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Why nothing can be sent any more: a rank that gave up a wait no longer knows which call of the others its next one would
  // meet. Empty as long as all is well.
  const Failure& broken() const { return broken_; }

  virtual Failure allreduce(const void* in, void* out, std::int64_t count, Type type, Op op, Place at) = 0;
  // Fills `out` on `root` alone; elsewhere it may be written to.
  virtual Failure reduce(const void* in, void* out, std::int64_t count, Type type, Op op, int root, Place at) = 0;
  virtual Failure bcast(const void* in, void* out, std::int64_t count, int width, int root, Place at) = 0;
  virtual Failure allgather(const void* in, void* out, const Counts& counts, int width, Place at) = 0;
  virtual Failure gather(const void* in, void* out, std::int64_t count, int width, int root, Place at) = 0;
  virtual Failure scatter(const void* in, void* out, std::int64_t count, int width, int root, Place at) = 0;
  virtual Failure reduce_scatter(const void* in, void* out, const Counts& counts, Type type, Op op, Place at) = 0;
  virtual Failure alltoall(const void* in, void* out, const Counts& leaving, const Counts& arriving, int width,
                           Place at) = 0;
  virtual Failure exchange(const std::vector<Message>& sends, const std::vector<Message>& receives, Place at) = 0;
  // `scratch` is a byte that the wire may use.
  virtual Failure barrier(void* scratch, Place at) = 0;

 protected:
  Failure give_up(Failure why) {
    broken_ = why;
    return why;
  }

 private:
  int rank_;
  int size_;
  Failure broken_;
};

// Wires are known by number: a compiled program holds the number, not an address. They live as long as the process.
std::int64_t add_wire(std::unique_ptr<Wire> wire);
Wire* find_wire(std::int64_t number);

}  // namespace collops
