// The transport of a single rank on a host: results are copies, and messages are queued until they are received.
#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>

#include "api.h"
#include "transport.h"

namespace collops {
namespace {

Failure copy(const void* in, void* out, std::int64_t bytes) {
  if (bytes && in != out) std::memmove(out, in, static_cast<std::size_t>(bytes));
  return {};
}

class SingleRankTransport final : public Transport {
 public:
  SingleRankTransport() : Transport(0, 1) {}

  Failure allreduce(const void* in, void* out, std::int64_t count, Type type, Op, Place) override {
    return copy(in, out, count * width_of(type));
  }
  Failure reduce(const void* in, void* out, std::int64_t count, Type type, Op, int, Place) override {
    return copy(in, out, count * width_of(type));
  }
  Failure bcast(const void* in, void* out, std::int64_t count, int width, int, Place) override {
    return copy(in, out, count * width);
  }
  Failure allgather(const void* in, void* out, const Counts& counts, int width, Place) override {
    return copy(in, out, counts[0] * width);
  }
  Failure gather(const void* in, void* out, std::int64_t count, int width, int, Place) override {
    return copy(in, out, count * width);
  }
  Failure scatter(const void* in, void* out, std::int64_t count, int width, int, Place) override {
    return copy(in, out, count * width);
  }
  Failure reduce_scatter(const void* in, void* out, const Counts& counts, Type type, Op, Place) override {
    return copy(in, out, counts[0] * width_of(type));
  }
  Failure alltoall(const void* in, void* out, const Counts& leaving, const Counts&, int width, Place) override {
    return copy(in, out, leaving[0] * width);
  }
  Failure exchange(const std::vector<Message>& sends, const std::vector<Message>& receives, Place) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Message& send : sends) {
      const auto* bytes = static_cast<const char*>(send.data);
      waiting_.push_back({send.tag, {bytes, bytes + send.count * send.width}});
    }
    for (const Message& receive : receives) {
      const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& sent) {
        return receive.tag < 0 || sent.tag == receive.tag;  // negative: any tag
      });
      if (found == waiting_.end()) {
        return "recv: nothing was sent with " + (receive.tag < 0 ? "any tag" : "tag " + std::to_string(receive.tag));
      }
      const std::vector<char> message = std::move(found->bytes);
      waiting_.erase(found);
      if (static_cast<std::int64_t>(message.size()) != receive.count * receive.width) {
        return "recv: a message of " + std::to_string(message.size()) + " bytes arrived for an array of " +
               std::to_string(receive.count * receive.width);
      }
      copy(message.data(), receive.data, receive.count * receive.width);
    }
    return {};
  }
  Failure barrier(void*, Place) override { return {}; }

 private:
  struct Waiting {
    int tag;
    std::vector<char> bytes;
  };
  std::mutex mutex_;
  std::deque<Waiting> waiting_;
};

}  // namespace
}  // namespace collops

std::int64_t collops_add_alone() { return collops::add_transport(std::make_unique<collops::SingleRankTransport>()); }
