// Recording, launching and dropping graphs with functions of the CUDA driver whose addresses Python passes.
#include "recordings.h"

#include <algorithm>
#include <cstring>

#include "api.h"

namespace collops {
namespace {

// In the order of _GRAPH_FUNCTIONS in src/collops/jax/drivers.py.
struct CudaFunctions {
  int (*stream_create)(void**, unsigned);
  int (*stream_is_capturing)(void*, int*);
  int (*stream_begin_capture)(void*, int);
  int (*stream_end_capture)(void*, void**);
  int (*graph_instantiate)(void**, void*, unsigned long long);
  int (*graph_launch)(void*, void*);
  int (*graph_destroy)(void*);
  int (*graph_exec_destroy)(void*);
};
constexpr int kFunctions = sizeof(CudaFunctions) / sizeof(void*);
constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
constexpr int kThreadLocal = 1;       // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

CudaFunctions cuda{};

}  // namespace

bool can_record() { return cuda.graph_launch != nullptr; }

Recordings::Known& Recordings::find(const Call& call) {
  auto found = known_.find(call);
  if (found == known_.end()) {
    if (known_.size() >= kMost) {
      const auto oldest = std::min_element(known_.begin(), known_.end(),
                                           [](const auto& a, const auto& b) { return a.second.last < b.second.last; });
      if (oldest->second.graph) cuda.graph_exec_destroy(oldest->second.graph);  // CUDA waits until it has finished
      known_.erase(oldest);
    }
    found = known_.emplace(call, Known{}).first;
  }
  found->second.last = ++now_;
  return found->second;
}

int Recordings::is_captured(Stream stream, bool& answer) {
  int status = 0;
  const int code = cuda.stream_is_capturing(stream, &status);
  answer = status != 0;
  return code;
}

int Recordings::begin() {
  if (side_ == nullptr) {
    if (const int code = cuda.stream_create(&side_, kNonBlocking)) return code;
  }
  return cuda.stream_begin_capture(side_, kThreadLocal);
}

int Recordings::end(Known* known) {
  void* graph = nullptr;
  if (const int code = cuda.stream_end_capture(side_, &graph)) return code;
  const int code = known ? cuda.graph_instantiate(&known->graph, graph, 0) : 0;
  cuda.graph_destroy(graph);
  return code;
}

int Recordings::launch(const Known& known, Stream stream) { return cuda.graph_launch(known.graph, stream); }

}  // namespace collops

void collops_load_cuda(const std::int64_t* functions) {
  using namespace collops;
  void* addresses[kFunctions];
  for (int i = 0; i < kFunctions; ++i) addresses[i] = reinterpret_cast<void*>(functions[i]);
  std::memcpy(&cuda, addresses, sizeof cuda);
}
