// Sums of int8 products as fixed-point numbers: sum * multiplier * mantissa / 2^by, rounded with halves upwards.
//
// `multiplier` is that of the weight row, `mantissa` that of the coded input, `by` the sum of both exponents less the
// 16 bits behind the point (integer.py: `requantised`). A result beyond 2^31 - 1 becomes it, below its negative that.
// One number a cycle; `out_valid` follows `valid` by four cycles.
module requantise (
    input  logic               clk,
    input  logic               reset,
    input  logic               valid,
    input  logic signed [31:0] sum,
    input  logic [15:0]        multiplier,
    input  logic [15:0]        mantissa,
    input  logic [5:0]         by,
    output logic               out_valid,
    output logic signed [31:0] out
);
    localparam logic signed [63:0] LIMIT = 64'sh7fff_ffff;

    logic valid_1, valid_2, valid_3;
    logic signed [47:0] scaled;
    logic signed [63:0] product, rounded, half;
    logic [15:0] mantissa_1;
    logic [5:0] by_1, by_2;

    assign half = (by_2 == 6'd0) ? 64'sd0 : (64'sd1 <<< (by_2 - 6'd1));

    always_ff @(posedge clk) begin
        valid_1 <= valid && !reset;
        scaled <= 48'(sum) * 48'(signed'({1'b0, multiplier}));
        mantissa_1 <= mantissa;
        by_1 <= by;

        valid_2 <= valid_1 && !reset;
        product <= 64'(scaled) * 64'(signed'({1'b0, mantissa_1}));
        by_2 <= by_1;

        valid_3 <= valid_2 && !reset;
        rounded <= (product + half) >>> by_2;

        out_valid <= valid_3 && !reset;
        if (rounded > LIMIT) out <= 32'sh7fff_ffff;
        else if (rounded < -LIMIT) out <= -32'sh7fff_ffff;
        else out <= rounded[31:0];
    end
endmodule
