// Shared by every microbenchmark: checked calls, random data, timing by graph replay, one JSON object a line.
//
// Conventions: a program writes JSON lines to stdout, each with a "table" key naming the list it belongs to;
// messages go to stderr; any CUDA error ends the program with status 1. Times are microseconds.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#define CHECK(call)                                                                                   \
  do {                                                                                                \
    cudaError_t err_ = (call);                                                                        \
    if (err_ != cudaSuccess) {                                                                        \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(err_));        \
      exit(1);                                                                                        \
    }                                                                                                 \
  } while (0)
#define CHECK_LAUNCH() CHECK(cudaGetLastError())

using bf16 = __nv_bfloat16;
using fp8 = __nv_fp8_e4m3;

constexpr int kMinSamples = 20;

template <typename T>
T* device_alloc(size_t count) {
  void* p = nullptr;
  CHECK(cudaMalloc(&p, std::max<size_t>(count, 1) * sizeof(T)));
  return static_cast<T*>(p);
}

template <typename T>
T* to_device(const std::vector<T>& host) {
  T* p = device_alloc<T>(host.size());
  CHECK(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}

template <typename T>
std::vector<T> to_host(const T* device, size_t count) {
  std::vector<T> host(count);
  CHECK(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}

__host__ __device__ inline uint32_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>((x ^ (x >> 31)) >> 16);
}

// Sum of two uniforms, roughly bell-shaped in (-amplitude, amplitude).
__host__ __device__ inline float noise(uint64_t index, uint64_t seed, float amplitude) {
  uint32_t r = mix(index * 2654435761ull + seed * 0x51ed2701ull);
  return amplitude * ((static_cast<float>(r & 0xffff) + static_cast<float>(r >> 16)) / 65536.0f - 1.0f);
}

template <typename T>
__global__ void fill_kernel(T* p, size_t count, uint64_t seed, float amplitude) {
  size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count; i += stride)
    p[i] = static_cast<T>(noise(i, seed, amplitude));
}

template <typename T>
void fill_random(T* p, size_t count, uint64_t seed, float amplitude = 1.0f) {
  fill_kernel<<<1056, 512>>>(p, count, seed, amplitude);
  CHECK_LAUNCH();
  CHECK(cudaDeviceSynchronize());
}

struct Timing {
  double us = 0, p10 = 0, p90 = 0;
  int samples = 0;
};

inline Timing summarise(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  auto at = [&](double q) {
    double x = q * (v.size() - 1);
    size_t lo = static_cast<size_t>(x), hi = std::min(lo + 1, v.size() - 1);
    return v[lo] + (v[hi] - v[lo]) * (x - lo);
  };
  return {at(0.5), at(0.1), at(0.9), static_cast<int>(v.size())};
}

// Time `launch(i)` (i = running launch number, so that callers can rotate buffers) by replaying a CUDA graph
// that holds enough launches to last about `target_us`; returns microseconds a launch over `samples` replays.
inline Timing time_graph(cudaStream_t stream, int rotate, const std::function<void(int)>& launch,
                         double target_us = 1500.0, int samples = kMinSamples) {
  cudaEvent_t a, b;
  CHECK(cudaEventCreate(&a));
  CHECK(cudaEventCreate(&b));
  auto once = [&](int n, const std::function<void()>& body) {
    CHECK(cudaEventRecord(a, stream));
    body();
    CHECK(cudaEventRecord(b, stream));
    CHECK(cudaEventSynchronize(b));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, a, b));
    return 1e3 * ms / n;
  };
  for (int i = 0; i < 2; ++i) launch(i);
  double guess = once(1, [&] { launch(0); });
  int n = static_cast<int>(std::clamp(std::ceil(target_us / guess), 1.0, 400.0));
  if (rotate > 1 && n < 400) n = std::min(400, (n + rotate - 1) / rotate * rotate);  // whole rounds of the buffers
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < n; ++i) launch(i);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 5; ++i) CHECK(cudaGraphLaunch(exec, stream));
  std::vector<double> v;
  for (int i = 0; i < samples; ++i) v.push_back(once(n, [&] { CHECK(cudaGraphLaunch(exec, stream)); }));
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaEventDestroy(a));
  CHECK(cudaEventDestroy(b));
  return summarise(v);
}

// One JSON object on one line. Keys keep the order they were added in.
class Row {
 public:
  explicit Row(const char* table) { text("table", table); }
  Row& text(const char* key, const std::string& v) { return raw(key, "\"" + v + "\""); }
  Row& num(const char* key, double v) {
    char buf[64];
    snprintf(buf, sizeof buf, "%.6g", v);
    return raw(key, std::isfinite(v) ? buf : "null");
  }
  Row& count(const char* key, long long v) { return raw(key, std::to_string(v)); }
  Row& flag(const char* key, bool v) { return raw(key, v ? "true" : "false"); }
  Row& timing(const Timing& t) {
    return num("us", t.us).num("us_p10", t.p10).num("us_p90", t.p90).count("samples", t.samples);
  }
  void print() const {
    printf("{%s}\n", body_.c_str());
    fflush(stdout);
  }

 private:
  Row& raw(const char* key, const std::string& v) {
    if (!body_.empty()) body_ += ", ";
    body_ += "\"" + std::string(key) + "\": " + v;
    return *this;
  }
  std::string body_;
};

// Report one correctness check; the program's exit status is the number of failed ones.
inline int report_check(const std::string& kernel, const std::string& what, double error, double limit) {
  bool ok = error <= limit;  // false for NaN
  Row("checks").text("kernel", kernel).text("case", what).num("relative_error", error).num("limit", limit)
      .flag("passed", ok).print();
  if (!ok) fprintf(stderr, "check failed: %s %s: relative error %g, limit %g\n", kernel.c_str(), what.c_str(), error, limit);
  return ok ? 0 : 1;
}

// ||got - want|| / ||want||; NaN where any element of `got` was left poisoned.
template <typename T>
double relative_error(const std::vector<T>& got, const std::vector<double>& want) {
  double diff = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    double d = static_cast<double>(static_cast<float>(got[i])) - want[i];
    diff += d * d;
    norm += want[i] * want[i];
  }
  return std::sqrt(diff / norm);
}

inline bool has_flag(int argc, char** argv, const char* name) {
  for (int i = 1; i < argc; ++i)
    if (!strcmp(argv[i], name)) return true;
  return false;
}

inline std::string format(const char* fmt, ...) {
  char buf[256];
  va_list args;
  va_start(args, fmt);
  vsnprintf(buf, sizeof buf, fmt, args);
  va_end(args);
  return buf;
}

inline cudaDeviceProp device_properties(int device = 0) {
  cudaDeviceProp p;
  CHECK(cudaGetDeviceProperties(&p, device));
  return p;
}
