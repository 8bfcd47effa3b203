// What a transformer layer does besides matrix products and attention, and greedy sampling of the head's logits.
//
// Per layer: add + RMSNorm, rotary embedding with the write into the paged cache, add + RMSNorm, SiLU times gate.
// The four launches are timed as one sequence ("layer_remainder") and one by one. Buffers are not rotated: in an
// engine a layer's activations were just written by the product before and sit in L2 where they fit.
#include "common.cuh"

namespace {

struct Model {
  const char* name;
  int hidden, heads, kv_heads, head_size, inner, vocab;
};
const Model kModels[] = {{"llama-3.1-8b", 4096, 32, 8, 128, 14336, 128256}, {"qwen2.5-14b", 5120, 40, 8, 128, 13824, 152064}};
const std::vector<int> kRowsAll{1, 8, 16, 32, 64, 128, 192, 256, 320, 384, 448, 512, 768, 1024, 1536, 2048, 4096, 8192};
constexpr int kBlockSize = 16;
constexpr float kEps = 1e-5f;

struct alignas(16) Vec {
  __nv_bfloat162 h[4];
};

__device__ __forceinline__ float block_sum(float x) {
  __shared__ float part[32];
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = x;
  __syncthreads();
  float total = 0;
  for (int i = 0; i < blockDim.x / 32; ++i) total += part[i];
  return total;
}

// residual += x; y = residual / rms(residual) * weight. One CTA a row; hidden <= 8 * VECS * blockDim.
template <int VECS>
__global__ void add_norm_kernel(const bf16* x, bf16* residual, const bf16* weight, bf16* y, int hidden) {
  size_t base = static_cast<size_t>(blockIdx.x) * hidden;
  float2 v[VECS][4];
  float square = 0;
#pragma unroll
  for (int i = 0; i < VECS; ++i) {
    int at = (i * blockDim.x + threadIdx.x) * 8;
    if (at >= hidden) continue;
    Vec a = *reinterpret_cast<const Vec*>(x + base + at), r = *reinterpret_cast<const Vec*>(residual + base + at), sum;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 p = __bfloat1622float2(a.h[j]), q = __bfloat1622float2(r.h[j]);
      sum.h[j] = __floats2bfloat162_rn(p.x + q.x, p.y + q.y);
      v[i][j] = __bfloat1622float2(sum.h[j]);
      square += v[i][j].x * v[i][j].x + v[i][j].y * v[i][j].y;
    }
    *reinterpret_cast<Vec*>(residual + base + at) = sum;
  }
  float inverse = rsqrtf(block_sum(square) / hidden + kEps);
#pragma unroll
  for (int i = 0; i < VECS; ++i) {
    int at = (i * blockDim.x + threadIdx.x) * 8;
    if (at >= hidden) continue;
    Vec w = *reinterpret_cast<const Vec*>(weight + at), out;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 g = __bfloat1622float2(w.h[j]);
      out.h[j] = __floats2bfloat162_rn(v[i][j].x * inverse * g.x, v[i][j].y * inverse * g.y);
    }
    *reinterpret_cast<Vec*>(y + base + at) = out;
  }
}

// Rotate q and k of a fused [q | k | v] row (halves paired, as in Llama), write k and v to the token's cache slot.
__global__ void rotary_cache_kernel(bf16* qkv, const float2* cos_sin, const int* position, const int* slot, bf16* k_cache, bf16* v_cache,
                                    int heads, int kv_heads, int d) {
  int token = blockIdx.x, half = d / 2, vecs = half / 8, width = (heads + 2 * kv_heads) * d;
  bf16* row = qkv + static_cast<size_t>(token) * width;
  const float2* cs = cos_sin + static_cast<size_t>(position[token]) * half;
  size_t cache = static_cast<size_t>(slot[token]) * kv_heads * d;
  for (int i = threadIdx.x; i < (heads + kv_heads) * vecs; i += blockDim.x) {
    int head = i / vecs, at = i % vecs * 8;
    Vec lo = *reinterpret_cast<Vec*>(row + head * d + at), hi = *reinterpret_cast<Vec*>(row + head * d + half + at);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 a = __bfloat1622float2(lo.h[j]), b = __bfloat1622float2(hi.h[j]), c0 = cs[at + 2 * j], c1 = cs[at + 2 * j + 1];
      lo.h[j] = __floats2bfloat162_rn(a.x * c0.x - b.x * c0.y, a.y * c1.x - b.y * c1.y);
      hi.h[j] = __floats2bfloat162_rn(b.x * c0.x + a.x * c0.y, b.y * c1.x + a.y * c1.y);
    }
    bf16* out = head < heads ? row + head * d : k_cache + cache + (head - heads) * d;
    *reinterpret_cast<Vec*>(out + at) = lo;
    *reinterpret_cast<Vec*>(out + half + at) = hi;
  }
  for (int i = threadIdx.x; i < kv_heads * d / 8; i += blockDim.x)
    reinterpret_cast<Vec*>(v_cache + cache)[i] = reinterpret_cast<Vec*>(row + (heads + kv_heads) * d)[i];
}

// y = silu(gate) * up of a fused [gate | up] row.
__global__ void silu_mul_kernel(const bf16* gate_up, bf16* y, int inner) {
  const bf16* row = gate_up + static_cast<size_t>(blockIdx.y) * 2 * inner;
  int at = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (at >= inner) return;
  Vec g = *reinterpret_cast<const Vec*>(row + at), u = *reinterpret_cast<const Vec*>(row + inner + at), out;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float2 a = __bfloat1622float2(g.h[j]), b = __bfloat1622float2(u.h[j]);
    out.h[j] = __floats2bfloat162_rn(a.x / (1 + __expf(-a.x)) * b.x, a.y / (1 + __expf(-a.y)) * b.y);
  }
  *reinterpret_cast<Vec*>(y + static_cast<size_t>(blockIdx.y) * inner + at) = out;
}

// Greedy sampling, first of equals: argmax of each row of logits, one CTA a row.
__global__ void argmax_kernel(const bf16* logits, int* token, int vocab) {
  const bf16* row = logits + static_cast<size_t>(blockIdx.x) * vocab;
  float best = -INFINITY;
  int where = 0;
  for (int at = threadIdx.x * 8; at < vocab; at += blockDim.x * 8) {
    Vec v = *reinterpret_cast<const Vec*>(row + at);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 x = __bfloat1622float2(v.h[j]);
      if (x.x > best) best = x.x, where = at + 2 * j;
      if (x.y > best) best = x.y, where = at + 2 * j + 1;
    }
  }
  __shared__ float bests[32];
  __shared__ int wheres[32];
  auto merge = [&](float b, int w) {
    if (b > best || (b == best && w < where)) best = b, where = w;
  };
  for (int o = 16; o; o >>= 1) merge(__shfl_xor_sync(~0u, best, o), __shfl_xor_sync(~0u, where, o));
  if ((threadIdx.x & 31) == 0) bests[threadIdx.x >> 5] = best, wheres[threadIdx.x >> 5] = where;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  int warps = blockDim.x / 32;
  best = threadIdx.x < warps ? bests[threadIdx.x] : -INFINITY;
  where = threadIdx.x < warps ? wheres[threadIdx.x] : 0x7fffffff;
  for (int o = 16; o; o >>= 1) merge(__shfl_xor_sync(~0u, best, o), __shfl_xor_sync(~0u, where, o));
  if (threadIdx.x == 0) token[blockIdx.x] = where;
}

class Layer {
 public:
  Layer(const Model& m, int tp, int rows) : m_(m), rows_(rows), heads_(m.heads / tp), kv_heads_(m.kv_heads / tp), inner_(m.inner / tp) {
    width_ = (heads_ + 2 * kv_heads_) * m.head_size;
    x_ = make(static_cast<size_t>(rows) * m.hidden, 1), residual_ = make(static_cast<size_t>(rows) * m.hidden, 2);
    weight_ = make(m.hidden, 3), y_ = make(static_cast<size_t>(rows) * m.hidden, 4);
    qkv_ = make(static_cast<size_t>(rows) * width_, 5);
    gate_up_ = make(static_cast<size_t>(rows) * 2 * inner_, 6), act_ = make(static_cast<size_t>(rows) * inner_, 7);
    slots_ = std::max(4096, 2 * rows);
    k_ = make(static_cast<size_t>(slots_) * kv_heads_ * m.head_size, 8), v_ = make(static_cast<size_t>(slots_) * kv_heads_ * m.head_size, 9);
    std::vector<float2> cs(static_cast<size_t>(kPositions) * m.head_size / 2);
    for (int p = 0; p < kPositions; ++p)
      for (int i = 0; i < m.head_size / 2; ++i) {
        double a = p * std::pow(500000.0, -2.0 * i / m.head_size);
        cs[static_cast<size_t>(p) * m.head_size / 2 + i] = make_float2(std::cos(a), std::sin(a));
      }
    std::vector<int> order(slots_ / kBlockSize);
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::shuffle(order.begin(), order.end(), std::mt19937(5));
    for (int t = 0; t < rows; ++t) {
      position_.push_back(mix(t) % kPositions);
      slot_.push_back(order[t / kBlockSize] * kBlockSize + t % kBlockSize);
    }
    cos_sin_ = to_device(cs), d_position_ = to_device(position_), d_slot_ = to_device(slot_);
    CHECK(cudaStreamCreate(&stream_));
  }
  ~Layer() {
    for (bf16* p : {x_, residual_, weight_, y_, qkv_, gate_up_, act_, k_, v_}) cudaFree(p);
    cudaFree(cos_sin_), cudaFree(d_position_), cudaFree(d_slot_);
    cudaStreamDestroy(stream_);
  }

  void add_norm() {
    add_norm_kernel<4><<<rows_, 256, 0, stream_>>>(x_, residual_, weight_, y_, m_.hidden);
    CHECK_LAUNCH();
  }
  void rotary() {
    rotary_cache_kernel<<<rows_, 256, 0, stream_>>>(qkv_, cos_sin_, d_position_, d_slot_, k_, v_, heads_, kv_heads_, m_.head_size);
    CHECK_LAUNCH();
  }
  void silu() {
    silu_mul_kernel<<<dim3((inner_ / 8 + 255) / 256, rows_), 256, 0, stream_>>>(gate_up_, act_, inner_);
    CHECK_LAUNCH();
  }
  void all() { add_norm(), rotary(), add_norm(), silu(); }

  int check(int tp);
  void time(int tp) {
    auto emit = [&](const char* op, double bytes, const std::function<void(int)>& f) {
      Timing t = time_graph(stream_, 1, f);
      Row("layer_remainder").text("kernel", "own").text("model", m_.name).count("tp", tp).text("op", op).count("m", rows_).timing(t)
          .num("GBps", bytes / t.us / 1e3).print();
    };
    double norm = 8.0 * rows_ * m_.hidden, rope = 4.0 * rows_ * width_, act = 6.0 * rows_ * inner_;
    emit("add_norm", norm, [&](int) { add_norm(); });
    emit("rotary_cache", rope, [&](int) { rotary(); });
    emit("silu_mul", act, [&](int) { silu(); });
    emit("all", 2 * norm + rope + act, [&](int) { all(); });
  }

 private:
  static constexpr int kPositions = 4096;
  static bf16* make(size_t n, uint64_t seed) {
    bf16* p = device_alloc<bf16>(n);
    fill_random(p, n, seed);
    return p;
  }
  Model m_;
  int rows_, heads_, kv_heads_, inner_, width_, slots_;
  bf16 *x_, *residual_, *weight_, *y_, *qkv_, *gate_up_, *act_, *k_, *v_;
  float2* cos_sin_;
  int *d_position_, *d_slot_;
  std::vector<int> position_, slot_;
  cudaStream_t stream_;
};

std::vector<double> doubles(const bf16* p, size_t n) {
  std::vector<bf16> h = to_host(p, n);
  std::vector<double> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = static_cast<float>(h[i]);
  return v;
}

int Layer::check(int tp) {
  const size_t hid = static_cast<size_t>(rows_) * m_.hidden;
  const int d = m_.head_size, half = d / 2;
  std::vector<double> x = doubles(x_, hid), r = doubles(residual_, hid), w = doubles(weight_, m_.hidden), sum(hid), y(hid);
  std::vector<double> qkv = doubles(qkv_, static_cast<size_t>(rows_) * width_), gu = doubles(gate_up_, static_cast<size_t>(rows_) * 2 * inner_);
  for (bf16* p : {y_, act_}) CHECK(cudaMemset(p, 0xff, (p == y_ ? hid : static_cast<size_t>(rows_) * inner_) * sizeof(bf16)));
  for (bf16* p : {k_, v_}) CHECK(cudaMemset(p, 0xff, static_cast<size_t>(slots_) * kv_heads_ * d * sizeof(bf16)));
  add_norm(), rotary(), silu();
  CHECK(cudaStreamSynchronize(stream_));
  for (int t = 0; t < rows_; ++t) {
    double square = 0;
    for (int i = 0; i < m_.hidden; ++i) {
      size_t at = static_cast<size_t>(t) * m_.hidden + i;
      sum[at] = x[at] + r[at];
      square += sum[at] * sum[at];
    }
    double inverse = 1 / std::sqrt(square / m_.hidden + kEps);
    for (int i = 0; i < m_.hidden; ++i) y[static_cast<size_t>(t) * m_.hidden + i] = sum[static_cast<size_t>(t) * m_.hidden + i] * inverse * w[i];
  }
  std::vector<double> q, k, v, act;
  std::vector<bf16> got_q, got_k, got_v, all = to_host(qkv_, static_cast<size_t>(rows_) * width_);
  std::vector<bf16> kc = to_host(k_, static_cast<size_t>(slots_) * kv_heads_ * d), vc = to_host(v_, static_cast<size_t>(slots_) * kv_heads_ * d);
  for (int t = 0; t < rows_; ++t) {
    const double* row = qkv.data() + static_cast<size_t>(t) * width_;
    for (int h = 0; h < heads_ + 2 * kv_heads_; ++h)
      for (int i = 0; i < d; ++i) {
        double angle = position_[t] * std::pow(500000.0, -2.0 * (i % half) / d), c = std::cos(angle), s = std::sin(angle);
        double rotated = i < half ? row[h * d + i] * c - row[h * d + i + half] * s : row[h * d + i] * c + row[h * d + i - half] * s;
        size_t cache = (static_cast<size_t>(slot_[t]) * kv_heads_) * d + i;
        if (h < heads_)
          q.push_back(rotated), got_q.push_back(all[static_cast<size_t>(t) * width_ + h * d + i]);
        else if (h < heads_ + kv_heads_)
          k.push_back(rotated), got_k.push_back(kc[cache + (h - heads_) * d]);
        else
          v.push_back(row[h * d + i]), got_v.push_back(vc[cache + (h - heads_ - kv_heads_) * d]);
      }
    for (int i = 0; i < inner_; ++i) {
      double g = gu[static_cast<size_t>(t) * 2 * inner_ + i];
      act.push_back(g / (1 + std::exp(-g)) * gu[static_cast<size_t>(t) * 2 * inner_ + inner_ + i]);
    }
  }
  std::string what = format("%s, tp %d, %d rows", m_.name, tp, rows_);
  int bad = report_check("add_norm", what, std::max(relative_error(to_host(y_, hid), y), relative_error(to_host(residual_, hid), sum)), 1e-2);
  bad += report_check("rotary_cache q", what, relative_error(got_q, q), 1e-2) + report_check("rotary_cache k", what, relative_error(got_k, k), 1e-2);
  bad += report_check("rotary_cache v", what, relative_error(got_v, v), 0);
  return bad + report_check("silu_mul", what, relative_error(to_host(act_, act.size()), act), 1e-2);
}

int check_sampling(int rows, int vocab) {
  bf16* logits = device_alloc<bf16>(static_cast<size_t>(rows) * vocab);
  fill_random(logits, static_cast<size_t>(rows) * vocab, 77, 8.0f);
  int* token = device_alloc<int>(rows);
  CHECK(cudaMemset(token, 0xff, rows * sizeof(int)));
  argmax_kernel<<<rows, 1024>>>(logits, token, vocab);
  CHECK_LAUNCH();
  std::vector<double> h = doubles(logits, static_cast<size_t>(rows) * vocab);
  std::vector<int> got = to_host(token, rows);
  int wrong = 0;
  for (int r = 0; r < rows; ++r)
    wrong += got[r] != std::max_element(h.begin() + static_cast<size_t>(r) * vocab, h.begin() + static_cast<size_t>(r + 1) * vocab) - (h.begin() + static_cast<size_t>(r) * vocab);
  CHECK(cudaFree(logits));
  CHECK(cudaFree(token));
  return report_check("sampling", format("%d rows of %d", rows, vocab), wrong, 0);
}

void time_sampling(const Model& m, int rows) {
  size_t n = static_cast<size_t>(rows) * m.vocab;
  int copies = static_cast<int>(std::max(1.0, std::ceil(200e6 / (2.0 * n))));
  bf16* logits = device_alloc<bf16>(n * copies);
  fill_random(logits, n * copies, 77, 8.0f);
  int* token = device_alloc<int>(rows);
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  Timing t = time_graph(stream, copies, [&](int i) {
    argmax_kernel<<<rows, 1024, 0, stream>>>(logits + n * (i % copies), token, m.vocab);
    CHECK_LAUNCH();
  });
  Row("sampling").text("kernel", "own").text("model", m.name).text("op", "argmax").count("m", rows).timing(t).num("GBps", 2.0 * n / t.us / 1e3).print();
  CHECK(cudaFree(logits));
  CHECK(cudaFree(token));
  CHECK(cudaStreamDestroy(stream));
}

}  // namespace

int main(int argc, char** argv) {
  bool quick = has_flag(argc, argv, "--quick");
  if (has_flag(argc, argv, "--check")) {
    int bad = check_sampling(3, 5000 * 8);
    for (const Model& m : kModels)
      for (int tp : {1, 2}) bad += Layer(m, tp, has_flag(argc, argv, "--tiny") ? 3 : 19).check(tp);
    return bad;
  }
  for (const Model& m : kModels)
    for (int rows : kRowsAll) {
      if (quick && rows != 1 && rows != 64 && rows != 512 && rows != 2048) continue;
      for (int tp : {1, 2}) Layer(m, tp, rows).time(tp);
      if (rows <= 1024) time_sampling(m, rows);
    }
  return 0;
}
