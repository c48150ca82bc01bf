// Passes of small convolutional networks on a CPU, in float32 with channels last.
//
// Compiled by library.py, called by operations.py, which holds the contracts. Channels are
// worked on LANES at a time; images or tiles are shared out among the threads.

#include <cmath>
#include <cstring>
#include <vector>

typedef float lanes __attribute__((vector_size(64)));
static const long LANES = 16;

static inline lanes load(const float *from) {
    lanes values;
    std::memcpy(&values, from, sizeof values);
    return values;
}

static inline void store(float *to, lanes values) { std::memcpy(to, &values, sizeof values); }

static inline lanes positive(lanes condition, lanes values) {
    typedef int flags __attribute__((vector_size(64)));
    flags kept = condition > 0.0f;
    return (lanes)((flags)values & kept);
}

static inline void clear(std::vector<lanes> &values) {
    for (lanes &each : values) each = lanes{};
}

// One line of Winograd's F(4, 3) input transform: points 0, 1, -1, 2, -2 and infinity.
static inline void input_line(const lanes *d, long stride, lanes *v) {
    lanes d0 = d[0], d1 = d[stride], d2 = d[2 * stride];
    lanes d3 = d[3 * stride], d4 = d[4 * stride], d5 = d[5 * stride];
    lanes even = d4 - 4.0f * d2, odd = d3 - 4.0f * d1;
    lanes even2 = d4 - d2, odd2 = 2.0f * (d3 - d1);
    v[0] = 4.0f * d0 - 5.0f * d2 + d4;
    v[stride] = even + odd;
    v[2 * stride] = even - odd;
    v[3 * stride] = even2 + odd2;
    v[4 * stride] = even2 - odd2;
    v[5 * stride] = 4.0f * d1 - 5.0f * d3 + d5;
}

// One line of its output transform: six products become four values.
static inline void output_line(const lanes *m, long stride, lanes *y, long y_stride) {
    lanes sum = m[stride] + m[2 * stride], difference = m[stride] - m[2 * stride];
    lanes sum2 = m[3 * stride] + m[4 * stride], difference2 = m[3 * stride] - m[4 * stride];
    y[0] = m[0] + sum + sum2;
    y[y_stride] = difference + 2.0f * difference2;
    y[2 * y_stride] = sum + 4.0f * sum2;
    y[3 * y_stride] = difference + 8.0f * difference2 + m[5 * stride];
}

extern "C" {

// x (images, height, width, channels) -> v (36, images * tiles, channels).
void winograd_input(const float *x, float *v, long images, long height, long width, long channels) {
    long down = (height + 3) / 4, across = (width + 3) / 4;
    long tiles = images * down * across;
#pragma omp parallel for schedule(static)
    for (long tile = 0; tile < tiles; tile++) {
        const float *image = x + tile / (down * across) * height * width * channels;
        long top = tile / across % down * 4 - 1, left = tile % across * 4 - 1;
        for (long c = 0; c < channels; c += LANES) {
            lanes d[36];
            for (long i = 0; i < 6; i++)
                for (long j = 0; j < 6; j++) {
                    long row = top + i, column = left + j;
                    bool inside = 0 <= row && row < height && 0 <= column && column < width;
                    d[6 * i + j] = inside ? load(image + (row * width + column) * channels + c)
                                          : lanes{};
                }
            for (long j = 0; j < 6; j++) input_line(d + j, 6, d + j);
            for (long i = 0; i < 6; i++) input_line(d + 6 * i, 1, d + 6 * i);
            for (long p = 0; p < 36; p++) store(v + (p * tiles + tile) * channels + c, d[p]);
        }
    }
}

// m (36, images * tiles, channels) and bias (channels) -> y (images, height, width, channels).
void winograd_output(const float *m, const float *bias, float *y, long images, long height,
                     long width, long channels) {
    long down = (height + 3) / 4, across = (width + 3) / 4;
    long tiles = images * down * across;
#pragma omp parallel for schedule(static)
    for (long tile = 0; tile < tiles; tile++) {
        float *image = y + tile / (down * across) * height * width * channels;
        long top = tile / across % down * 4, left = tile % across * 4;
        for (long c = 0; c < channels; c += LANES) {
            lanes products[36], half[24], values[16];
            for (long p = 0; p < 36; p++)
                products[p] = load(m + (p * tiles + tile) * channels + c);
            for (long j = 0; j < 6; j++) output_line(products + j, 6, half + j, 6);
            for (long i = 0; i < 4; i++) output_line(half + 6 * i, 1, values + 4 * i, 1);
            lanes offset = load(bias + c);
            for (long i = 0; i < 4 && top + i < height; i++)
                for (long j = 0; j < 4 && left + j < width; j++)
                    store(image + ((top + i) * width + left + j) * channels + c,
                          values[4 * i + j] + offset);
        }
    }
}

// Instance norm, rectifier and the mean of 2 x 2 pixels.
// x (images, height, width, channels) -> y (images, height / 2, width / 2, channels),
// mean and scale (images, channels), where scale is 1 / deviation.
void norm_relu_pool(const float *x, const float *weight, const float *bias, float epsilon,
                    float *y, float *mean, float *scale, long images, long height, long width,
                    long channels) {
    float count = (float)(height * width);
    long groups = channels / LANES;
#pragma omp parallel for schedule(static)
    for (long image = 0; image < images; image++) {
        const float *in = x + image * height * width * channels;
        float *out = y + image * (height / 2) * (width / 2) * channels;
        // Row by row: the rounding of a sum grows with the number of its terms.
        std::vector<lanes> row(groups), middle(groups), inverse(groups), slope(groups),
            offset(groups);
        for (long i = 0; i < height; i++) {
            clear(row);
            for (long j = 0; j < width; j++)
                for (long g = 0; g < groups; g++)
                    row[g] += load(in + (i * width + j) * channels + g * LANES);
            for (long g = 0; g < groups; g++) middle[g] += row[g];
        }
        for (long g = 0; g < groups; g++) middle[g] /= count;
        for (long i = 0; i < height; i++) {
            clear(row);
            for (long j = 0; j < width; j++)
                for (long g = 0; g < groups; g++) {
                    lanes away = load(in + (i * width + j) * channels + g * LANES) - middle[g];
                    row[g] += away * away;
                }
            for (long g = 0; g < groups; g++) inverse[g] += row[g];
        }
        for (long g = 0; g < groups; g++) {
            for (long lane = 0; lane < LANES; lane++)
                inverse[g][lane] = 1.0f / std::sqrt(inverse[g][lane] / count + epsilon);
            slope[g] = inverse[g] * load(weight + g * LANES);
            offset[g] = load(bias + g * LANES) - middle[g] * slope[g];
            store(mean + image * channels + g * LANES, middle[g]);
            store(scale + image * channels + g * LANES, inverse[g]);
        }
        for (long i = 0; i < height; i += 2)
            for (long j = 0; j < width; j += 2)
                for (long g = 0; g < groups; g++) {
                    lanes sum = {};
                    for (long k = 0; k < 4; k++) {
                        long pixel = (i + k / 2) * width + j + k % 2;
                        lanes value = load(in + pixel * channels + g * LANES);
                        value = value * slope[g] + offset[g];
                        sum += positive(value, value);
                    }
                    store(out + (i / 2 * (width / 2) + j / 2) * channels + g * LANES, 0.25f * sum);
                }
    }
}

// The gradient of norm_relu_pool by x, from that by y.
void norm_relu_pool_backward(const float *dy, const float *x, const float *weight,
                             const float *bias, const float *mean, const float *scale, float *dx,
                             long images, long height, long width, long channels) {
    float count = (float)(height * width);
    long groups = channels / LANES;
#pragma omp parallel for schedule(static)
    for (long image = 0; image < images; image++) {
        const float *in = x + image * height * width * channels;
        const float *down = dy + image * (height / 2) * (width / 2) * channels;
        float *out = dx + image * height * width * channels;
        std::vector<lanes> row(groups), row_by_value(groups), sum(groups), by_value(groups),
            middle(groups), slope(groups), offset(groups);
        for (long g = 0; g < groups; g++) {
            middle[g] = load(mean + image * channels + g * LANES);
            slope[g] = load(scale + image * channels + g * LANES) * load(weight + g * LANES);
            offset[g] = load(bias + g * LANES) - middle[g] * slope[g];
        }
        for (long i = 0; i < height; i++) {
            clear(row);
            clear(row_by_value);
            for (long j = 0; j < width; j++)
                for (long g = 0; g < groups; g++) {
                    lanes value = load(in + (i * width + j) * channels + g * LANES);
                    lanes passed = load(down + (i / 2 * (width / 2) + j / 2) * channels + g * LANES);
                    passed = positive(value * slope[g] + offset[g], passed);
                    row[g] += passed;
                    row_by_value[g] += passed * (value - middle[g]);
                }
            for (long g = 0; g < groups; g++) {
                sum[g] += row[g];
                by_value[g] += row_by_value[g];
            }
        }
        // With n the normalised values: slope * (d - mean(d) - n * mean(d * n)), d = passed / 4.
        for (long g = 0; g < groups; g++) {
            lanes inverse = load(scale + image * channels + g * LANES);
            sum[g] /= count;
            by_value[g] *= inverse * inverse / count;
        }
        for (long i = 0; i < height; i++)
            for (long j = 0; j < width; j++)
                for (long g = 0; g < groups; g++) {
                    lanes value = load(in + (i * width + j) * channels + g * LANES);
                    lanes passed = load(down + (i / 2 * (width / 2) + j / 2) * channels + g * LANES);
                    passed = positive(value * slope[g] + offset[g], passed);
                    passed -= sum[g] + by_value[g] * (value - middle[g]);
                    store(out + (i * width + j) * channels + g * LANES, 0.25f * slope[g] * passed);
                }
    }
}
}
